// Package imports translates the handler tables of CRI-O and of containerd into
// berth's, key by key.
//
// It decides and does nothing: files come parsed, and programs are looked for by
// a function. What a translated table says is checked by pkg/config like any
// other table.
package imports

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// Kind is whose configuration a file is.
type Kind string

const (
	// CRIO files have [crio.runtime.runtimes.<handler>].
	CRIO Kind = "crio"
	// Containerd files have [plugins.<the CRI plugin>.containerd.runtimes.<handler>].
	Containerd Kind = "containerd"
)

// Handler is one translated table.
type Handler struct {
	// Name is the handler's name, as it is written.
	Name string
	// At is its table, and Key the full key of that.
	At  tomlfile.Origin
	Key string
	// Values are the keys of [runtimes.<handler>] that say the same to berth.
	Values map[string]any
	// From tells where each of these is from: "runtime_path", "options.Root".
	From map[string]tomlfile.Origin
	// Unfound says that no runtime_path is known, and why; else it is empty.
	Unfound string
}

// Note is something in a file that means nothing to berth, or something else than to the
// daemon that the file is for.
type Note struct {
	// Origin is the place of the key.
	Origin tomlfile.Origin
	// Key is the full key in that file.
	Key string
	// Handler is empty if it is about no handler.
	Handler string
	// Why it is not taken over, or how.
	Why string
	// Do is what an operator can do about it; empty is nothing.
	Do string
}

// String is "file:line:column: key: why; what to do".
func (n Note) String() string {
	s := n.Key + ": " + n.Why
	if n.Key == "" {
		s = n.Why
	}
	if at := n.Origin.Place(); at != "" {
		s = at + ": " + s
	}
	if n.Do != "" {
		s += "; " + n.Do
	}
	return s
}

// SortNotes sorts by place.
func SortNotes(notes []Note) {
	slices.SortStableFunc(notes, func(a, b Note) int { return cmp.Or(a.Origin.Compare(b.Origin), cmp.Compare(a.Key, b.Key)) })
}

type place struct {
	file *tomlfile.Document
	key  []string
}

func (p place) below(parts ...string) place {
	return place{p.file, slices.Concat(p.key, parts)}
}

// origin is where the key is, or the table that it is in.
func (p place) origin() tomlfile.Origin {
	for n := len(p.key); n > 0; n-- {
		if o, ok := p.file.Origins[tomlfile.JoinKey(p.key[:n]...)]; ok {
			return o
		}
	}
	return tomlfile.Origin{File: p.file.File}
}

// Find returns the absolute path of a program, or "".
type Find func(program string) string

// KindOf tells whose configuration a file is, by its tables.
func KindOf(values map[string]any) (Kind, bool) {
	if _, crio := values["crio"].(map[string]any); crio {
		return CRIO, true
	}
	if _, plugins := values["plugins"].(map[string]any); plugins {
		return Containerd, true
	}
	return "", false
}

// Translate translates files of one kind that are read in this order, a later
// one over an earlier one as their own daemon does it. Handlers are sorted by name. Pure
// but for find.
func Translate(kind Kind, files []*tomlfile.Document, find Find) ([]Handler, []Note) {
	t := &translation{find: find}
	switch kind {
	case CRIO:
		t.crio(files)
	case Containerd:
		t.containerd(files)
	}
	slices.SortFunc(t.handlers, func(a, b Handler) int { return cmp.Compare(a.Name, b.Name) })
	return t.handlers, t.notes
}

type translation struct {
	find     Find
	handlers []Handler
	notes    []Note
}

func (t *translation) note(at place, handler, why, do string) {
	t.notes = append(t.notes, Note{Origin: at.origin(), Key: tomlfile.JoinKey(at.key...), Handler: handler, Why: why, Do: do})
}

// table is a foreign handler's table, possibly merged from several files.
type table struct {
	name   string
	at     place
	values map[string]any
	// places are those of keys of values, and of "options.<key>".
	places map[string]place
	// wasm is where containerd is told that the images are of WebAssembly; zero if it is
	// not.
	wasm place
}

func newTable(name string, at place, values map[string]any) *table {
	t := &table{name: name, at: at, values: map[string]any{}, places: map[string]place{}}
	t.merge(at, values)
	return t
}

// merge lays keys over those that are there, and those of options one by one.
func (t *table) merge(at place, values map[string]any) {
	for _, key := range sortedKeys(values) {
		v := values[key]
		if options, ok := v.(map[string]any); ok && key == "options" {
			merged := map[string]any{}
			maps.Copy(merged, t.options())
			for name, o := range options {
				merged[name] = o
				t.places["options."+name] = at.below("options", name)
			}
			v = merged
		}
		t.values[key] = v
		t.places[key] = at.below(key)
	}
}

// place is where a key is, or the table where the key is not there.
func (t *table) place(key string) place {
	if p, ok := t.places[key]; ok {
		return p
	}
	return t.at
}

func (t *table) text(key string) string {
	s, _ := t.values[key].(string)
	return s
}

func (t *table) options() map[string]any {
	o, _ := t.values["options"].(map[string]any)
	return o
}

// translating is one handler on its way.
type translating struct {
	*translation
	from *table
	to   Handler
}

func (t *translation) begin(from *table) *translating {
	return &translating{t, from, Handler{
		Name: from.name, At: from.at.origin(), Key: tomlfile.JoinKey(from.at.key...),
		Values: map[string]any{}, From: map[string]tomlfile.Origin{},
	}}
}

func (h *translating) end() { h.handlers = append(h.handlers, h.to) }

// set gives berth's key a value that is from a foreign key.
func (h *translating) set(key string, v any, from string) {
	h.to.Values[key] = v
	h.to.From[key] = h.from.place(from).origin()
}

// option does so in the options table.
func (h *translating) option(key string, v any, from string) {
	options, ok := h.to.Values["options"].(map[string]any)
	if !ok {
		options = map[string]any{}
		h.set("options", options, "options")
	}
	options[key] = v
	h.to.From["options."+key] = h.from.place(from).origin()
}

func (h *translating) note(from, why, do string) {
	h.translation.note(h.from.place(from), h.from.name, why, do)
}

// keys translates those keys that mean one thing by themselves.
func (h *translating) keys(meanings map[string]meaning, whose string) {
	for _, key := range sortedKeys(h.from.values) {
		v := h.from.values[key]
		m, known := meanings[key]
		switch {
		case !known:
			h.note(key, "is a key that "+whose+" does not have either", near(key, meanings))
		case m.to != "" && !unset(v):
			h.set(m.to, v, key)
		case m.why != "" && !unset(v) && v != m.same:
			h.note(key, m.why, m.do)
		}
	}
}

// meaning is what a foreign key is to berth: the key that says the same, or why
// there is none and what to do. The empty one is of a key that is translated elsewhere.
type meaning struct {
	to      string
	why, do string
	// same is a value that berth does anyway.
	same any
}

// unset says that a value is what the key has where it is not written.
func unset(v any) bool {
	value := reflect.ValueOf(v)
	switch value.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Slice, reflect.Map:
		return value.Len() == 0
	}
	return value.IsZero()
}

// allBut visits the keys of a table but one, in their order.
func allBut(one string, values map[string]any, visit func(key string)) {
	for _, key := range sortedKeys(values) {
		if key != one {
			visit(key)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// near is advice for a mistyped key.
func near[V any](key string, known map[string]V) string {
	if like, ok := handler.Nearest(key, sortedKeys(known)); ok {
		return "correct it to " + like + " if that was meant"
	}
	return ""
}
