package installer

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"
)

// berth rejects a configuration whose directory of drop-ins is gone: the last runtime or value
// that is rolled back must not remove the directory.
func TestDirectoryOfDropInsStays(t *testing.T) {
	for _, b := range []Beside{{}, {Handlers: []string{"runc"}}} {
		files := slices.Collect(maps.Keys(configTexts(b, "")))
		if !slices.ContainsFunc(files, func(f string) bool { return filepath.Dir(f) == dropIns && filepath.Ext(f) != ".toml" }) {
			t.Errorf("with handlers %q the files are %q", b.Handlers, files)
		}
	}
}
