// Package imports translates the handler tables of CRI-O and of containerd into berth's, key by
// key.
//
// It only translates: the caller parses the files, and supplies the search for programs. Package
// config checks a translated table like any other table.
package imports

import (
	"cmp"
	"maps"
	"reflect"
	"slices"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// Kind is the daemon that a configuration file belongs to.
type Kind string

const (
	// CRIO files have [crio.runtime.runtimes.<handler>].
	CRIO Kind = "crio"
	// Containerd files have [plugins.<the CRI plugin>.containerd.runtimes.<handler>].
	Containerd Kind = "containerd"
)

// Handler is one translated table.
type Handler struct {
	// Name is the handler's name, as written.
	Name string
	// At is the origin of its table, and Key the table's full key.
	At  tomlfile.Origin
	Key string
	// Values are the equivalent keys of [runtimes.<handler>].
	Values map[string]any
	// From holds the origin of each of these keys, such as "options.Root".
	From map[string]tomlfile.Origin
	// Unfound is the program that was not found for runtime_path, or empty.
	Unfound string
}

// Note is a setting that berth ignores, or interprets differently from the daemon of the file.
type Note struct {
	// Origin is the place of the key.
	Origin tomlfile.Origin
	// Key is the full key in that file.
	Key string
	// Handler is the handler concerned, or empty.
	Handler string
	// Why is the reason why the setting is ignored, or the difference.
	Why string
	// Do is the action for an operator, or empty.
	Do string
}

// String returns "file:line:column: key: why; what to do".
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

// origin returns the origin of the key, or of the table that contains it.
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

// KindOf returns the daemon of a configuration file, by its tables.
func KindOf(values map[string]any) (Kind, bool) {
	if _, crio := values["crio"].(map[string]any); crio {
		return CRIO, true
	}
	if _, plugins := values["plugins"].(map[string]any); plugins {
		return Containerd, true
	}
	return "", false
}

// Translate translates files of one kind in this order; a later file overrides an earlier one as in
// that daemon. Handlers are sorted by name. Pure except for find.
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
	// places has each key's place, an option's under "options.<key>".
	places map[string]place
	// wasm is the place of containerd's setting for WebAssembly images; zero if unset.
	wasm place
}

func newTable(name string, at place, values map[string]any) *table {
	t := &table{name: name, at: at, values: map[string]any{}, places: map[string]place{}}
	t.merge(at, values)
	return t
}

// merge merges keys over the existing ones, and those of options one by one.
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

// place returns the place of a key, or of the table if the key is absent.
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

// translating is the translation of one handler.
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

// set sets berth's key to a value from a foreign key.
func (h *translating) set(key string, v any, from string) {
	h.to.Values[key] = v
	h.to.From[key] = h.from.place(from).origin()
}

// option sets a key in the options table, like set.
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

// keys translates the keys that can be translated one by one.
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

// meaning is the translation of a foreign key: the equivalent key, or the reason for its absence,
// and the action. The empty meaning marks a key that is translated in code.
type meaning struct {
	to      string
	why, do string
	// same is the value that matches berth's fixed behavior.
	same any
}

// unset reports whether a value equals that of an absent key.
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

// allBut visits the keys of a table except one, in sorted order.
func allBut(one string, values map[string]any, visit func(key string)) {
	for _, key := range sortedKeys(values) {
		if key != one {
			visit(key)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// near returns advice for a mistyped key.
func near[V any](key string, known map[string]V) string {
	if like, ok := handler.Nearest(key, sortedKeys(known)); ok {
		return "correct it to " + like + " if that was meant"
	}
	return ""
}
