package lifecycle

import (
	"reflect"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
)

// conf is a configuration with handlers by name and path; the first is the default.
func conf(pairs ...string) *config.Config {
	c := &config.Config{}
	for i := 0; i < len(pairs); i += 2 {
		c.Runtimes = append(c.Runtimes, &handler.Definition{Name: pairs[i], Type: handler.OCI, Path: pairs[i+1]})
	}
	if len(pairs) > 0 {
		c.DefaultRuntime = pairs[0]
	}
	return c
}

func broken(c *config.Config, name, reason string) *config.Config {
	c.Broken = append(c.Broken, config.Broken{Name: name, Origin: name + ".toml:1", Reason: reason})
	return c
}

func TestCompare(t *testing.T) {
	moved := conf("runc", "/r")
	moved.Runtimes[0].Origin = "elsewhere:9"
	for name, c := range map[string]struct {
		before, next *config.Config
		want         Diff
	}{
		"nothing":             {conf("runc", "/r"), conf("runc", "/r"), Diff{DefaultFrom: "runc", DefaultTo: "runc"}},
		"a line further down": {conf("runc", "/r"), moved, Diff{DefaultFrom: "runc", DefaultTo: "runc"}},
		"two added": {conf("runc", "/r"), conf("runc", "/r", "kata", "/k", "crun", "/c"),
			Diff{Added: []string{"crun", "kata"}, DefaultFrom: "runc", DefaultTo: "runc"}},
		"one changed":     {conf("runc", "/r"), conf("runc", "/new"), Diff{Changed: []string{"runc"}, DefaultFrom: "runc", DefaultTo: "runc"}},
		"default removed": {conf("runc", "/r", "crun", "/c"), conf("crun", "/c"), Diff{Removed: []string{"runc"}, DefaultFrom: "runc", DefaultTo: "crun"}},
		"mended":          {broken(conf("runc", "/r"), "kata", "bad"), conf("runc", "/r", "kata", "/k"), Diff{Changed: []string{"kata"}, DefaultFrom: "runc", DefaultTo: "runc"}},
		"still broken":    {broken(conf("runc", "/r"), "kata", "bad"), broken(conf("runc", "/r"), "kata", "bad"), Diff{DefaultFrom: "runc", DefaultTo: "runc"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Compare(c.before, c.next)
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			test.Equal(t, "that it is empty", got.Empty(), name == "nothing" || name == "a line further down" || name == "still broken")
		})
	}
}
