package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/runc/options"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// knownKeys returns the keys of section s.
func knownKeys(t *testing.T, s string) []string {
	t.Helper()
	switch s {
	case sectionTop:
		return append(tomlfile.FieldsOf(reflect.TypeFor[Config]()).Names, "runtimes")
	case sectionHandler:
		return tomlfile.FieldsOf(reflect.TypeFor[runtimeTable]()).Names
	case sectionOCI:
		return tomlfile.FieldsOf(reflect.TypeFor[handler.OCIOptions]()).Names
	case sectionRunc:
		return tomlfile.FieldsOf(reflect.TypeFor[runcOptions]()).Names
	}
	f, ok := fieldAtSection(s)
	if !ok {
		t.Fatalf("hints are for a section %q that does not exist", s)
	}
	return tomlfile.FieldsOf(f).Names
}

func fieldAtSection(name string) (reflect.Type, bool) {
	cfg := reflect.TypeFor[Config]()
	i, ok := tomlfile.FieldsOf(cfg).Index[name]
	if !ok {
		return nil, false
	}
	return cfg.FieldByIndex(i).Type, true
}

// TestHintsPointAtKeys fails if a hint is for a key that berth has, or points
// at a key that berth does not have.
func TestHintsPointAtKeys(t *testing.T) {
	for s, hints := range foreign {
		known := knownKeys(t, s)
		for name, e := range hints {
			if slices.Contains(known, name) {
				t.Errorf("%s: %s is a key of berth's and needs no hint", s, name)
			}
			if (e.key == "") == (e.text == "") {
				t.Errorf("%s: the hint for %s needs either a key or a text", s, name)
			}
			if e.key != "" && !pointsSomewhere(t, s, e.key) {
				t.Errorf("%s: the hint for %s points at %s, which does not exist", s, name, e.key)
			}
		}
	}
}

func pointsSomewhere(t *testing.T, from, key string) bool {
	t.Helper()
	if slices.Contains(knownKeys(t, from), key) || slices.Contains(knownKeys(t, sectionTop), key) || slices.Contains(knownKeys(t, sectionHandler), key) {
		return true
	}
	name, rest, _ := strings.Cut(key, ".")
	if name == "options" {
		return slices.Contains(knownKeys(t, sectionOCI), rest)
	}
	_, ok := fieldAt(Default(), key)
	return ok
}

// TestRuncOptionsAreContainerds fails if containerd adds, drops or changes an
// option of its runc shim.
func TestRuncOptionsAreContainerds(t *testing.T) {
	want := map[string]reflect.Kind{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[options.Options]()) {
		if f.IsExported() {
			want[f.Name] = f.Type.Kind()
		}
	}
	got := map[string]reflect.Kind{}
	mine := reflect.TypeFor[runcOptions]()
	for i := range mine.NumField() {
		f := mine.Field(i)
		got[f.Tag.Get("toml")] = f.Type.Kind()
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
