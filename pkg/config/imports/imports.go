// Package imports translates the handler tables of CRI-O and of containerd into
// berth's, key by key.
//
// It decides and does nothing: files come parsed, and programs are looked for by
// a function. What a translated table says is checked by pkg/config like any
// other table, which also knows the lines.
package imports

import (
	"cmp"
	"maps"
	"slices"
)

// Kind is whose configuration a file is.
type Kind string

const (
	// CRIO files have [crio.runtime.runtimes.<handler>].
	CRIO Kind = "crio"
	// Containerd files have [plugins.<the CRI plugin>.containerd.runtimes.<handler>].
	Containerd Kind = "containerd"
)

// File is one parsed file.
type File struct {
	// Name is the path.
	Name string
	// Values are the keys of the file.
	Values map[string]any
}

// Place is a key in a file.
type Place struct {
	File string
	Key  []string
}

// Below is the place of a key in the table that is here.
func (p Place) Below(parts ...string) Place {
	return Place{File: p.File, Key: slices.Concat(p.Key, parts)}
}

// Handler is one translated table.
type Handler struct {
	// Name is the handler's name, as it is written.
	Name string
	// At is its table.
	At Place
	// Values are the keys of [runtimes.<handler>] that say the same to berth.
	Values map[string]any
	// From tells where each of these is from: "runtime_path", "options.Root".
	From map[string]Place
	// Unfound says that no runtime_path is known, and why; else it is empty.
	Unfound string
}

// Note is something that means nothing to berth, or something else.
type Note struct {
	Place
	// Handler is empty if it is about no handler.
	Handler string
	// Why it is not taken over, or how.
	Why string
	// Do is what an operator can do about it; empty is nothing.
	Do string
}

// Result is what files amount to. Handlers are sorted by name, notes by file
// and key.
type Result struct {
	Handlers []Handler
	Notes    []Note
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
// one over an earlier one as their own daemon does it. Pure but for find.
func Translate(kind Kind, files []File, find Find) Result {
	t := &translation{find: find}
	switch kind {
	case CRIO:
		t.crio(files)
	case Containerd:
		t.containerd(files)
	}
	slices.SortFunc(t.result.Handlers, func(a, b Handler) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortStableFunc(t.result.Notes, func(a, b Note) int { return comparePlaces(a.Place, b.Place) })
	return t.result
}

// translation collects what is found.
type translation struct {
	find   Find
	result Result
}

func (t *translation) note(n Note) { t.result.Notes = append(t.result.Notes, n) }

// table is a foreign handler's table, possibly merged from several files.
type table struct {
	name   string
	at     Place
	values map[string]any
	// places are those of keys of values, and of "options.<key>".
	places map[string]Place
	// wasm is where containerd is told that the images are of WebAssembly; zero if it is
	// not.
	wasm Place
}

func newTable(name string, at Place, values map[string]any) *table {
	t := &table{name: name, at: at, values: map[string]any{}, places: map[string]Place{}}
	t.merge(at, values)
	return t
}

// merge lays keys over those that are there, and those of options one by one.
func (t *table) merge(at Place, values map[string]any) {
	for _, key := range sortedKeys(values) {
		v := values[key]
		if options, ok := v.(map[string]any); ok && key == "options" {
			before, _ := t.values[key].(map[string]any)
			merged := map[string]any{}
			maps.Copy(merged, before)
			for name, o := range options {
				merged[name] = o
				t.places["options."+name] = at.Below("options", name)
			}
			v = merged
		}
		t.values[key] = v
		t.places[key] = at.Below(key)
	}
}

// place is where a key is, or the table where the key is not there.
func (t *table) place(key string) Place {
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
	return &translating{t, from, Handler{Name: from.name, At: from.at, Values: map[string]any{}, From: map[string]Place{}}}
}

func (h *translating) end() { h.result.Handlers = append(h.result.Handlers, h.to) }

// set gives berth's key a value that is from a foreign key.
func (h *translating) set(key string, v any, from string) {
	h.to.Values[key] = v
	h.to.From[key] = h.from.place(from)
}

// option does so in the options table.
func (h *translating) option(key string, v any, from string) {
	options, ok := h.to.Values["options"].(map[string]any)
	if !ok {
		options = map[string]any{}
		h.set("options", options, "options")
	}
	options[key] = v
	h.to.From["options."+key] = h.from.place(from)
}

func (h *translating) note(from, why, do string) {
	h.translation.note(Note{Place: h.from.place(from), Handler: h.from.name, Why: why, Do: do})
}

// keys translates those keys that mean one thing by themselves; skip are looked
// at elsewhere.
func (h *translating) keys(meanings map[string]meaning, whose string, skip ...string) {
	for _, key := range sortedKeys(h.from.values) {
		v := h.from.values[key]
		if slices.Contains(skip, key) {
			continue
		}
		m, known := meanings[key]
		switch {
		case !known:
			h.note(key, "is a key that "+whose+" does not have either", near(key, meanings))
		case m.to != "" && !unset(v):
			h.set(m.to, v, key)
		case m.to == "" && !unset(v) && v != m.same:
			h.note(key, m.why, m.do)
		}
	}
}

// meaning is what a foreign key is to berth: the key that says the same, or why
// there is none and what to do.
type meaning struct {
	to      string
	why, do string
	// same is a value that berth does anyway.
	same any
}

// unset says that a value is what the key has where it is not written.
func unset(v any) bool {
	switch x := v.(type) {
	case string:
		return x == ""
	case bool:
		return !x
	case int64:
		return x == 0
	case []any:
		return len(x) == 0
	case map[string]any:
		return len(x) == 0
	}
	return false
}
