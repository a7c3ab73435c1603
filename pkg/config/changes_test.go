package config

import (
	"reflect"
	"testing"

	"github.com/berth-cri/berth/pkg/handler"
)

// withHandlers returns a configuration with handlers by name and path; the first is the default.
func withHandlers(pairs ...string) *Config {
	c := &Config{}
	for i := 0; i < len(pairs); i += 2 {
		c.Runtimes = append(c.Runtimes, &handler.Definition{Name: pairs[i], Type: handler.OCI, Path: pairs[i+1]})
	}
	if len(pairs) > 0 {
		c.DefaultRuntime = pairs[0]
	}
	return c
}

func withBroken(c *Config, name, reason string) *Config {
	c.Broken = append(c.Broken, Broken{Name: name, Origin: name + ".toml:1", Reason: reason})
	return c
}

func TestDiffOfHandlers(t *testing.T) {
	moved := withHandlers("runc", "/r")
	moved.Runtimes[0].Origin = "elsewhere:9"
	for name, c := range map[string]struct {
		before, next *Config
		want         Diff
	}{
		"no change":             {withHandlers("runc", "/r"), withHandlers("runc", "/r"), Diff{DefaultFrom: "runc", DefaultTo: "runc"}},
		"only the line changed": {withHandlers("runc", "/r"), moved, Diff{DefaultFrom: "runc", DefaultTo: "runc"}},
		"two added": {withHandlers("runc", "/r"), withHandlers("runc", "/r", "kata", "/k", "crun", "/c"),
			Diff{Added: []string{"crun", "kata"}, DefaultFrom: "runc", DefaultTo: "runc"}},
		"one changed":         {withHandlers("runc", "/r"), withHandlers("runc", "/new"), Diff{Changed: []string{"runc"}, DefaultFrom: "runc", DefaultTo: "runc"}},
		"default removed":     {withHandlers("runc", "/r", "crun", "/c"), withHandlers("crun", "/c"), Diff{Removed: []string{"runc"}, DefaultFrom: "runc", DefaultTo: "crun"}},
		"broken one repaired": {withBroken(withHandlers("runc", "/r"), "kata", "bad"), withHandlers("runc", "/r", "kata", "/k"), Diff{Changed: []string{"kata"}, DefaultFrom: "runc", DefaultTo: "runc"}},
		"still broken":        {withBroken(withHandlers("runc", "/r"), "kata", "bad"), withBroken(withHandlers("runc", "/r"), "kata", "bad"), Diff{DefaultFrom: "runc", DefaultTo: "runc"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, got := Reload(c.before, c.next)
			got.Live = nil // Live also has default_runtime
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}
