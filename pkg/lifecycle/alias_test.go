package lifecycle

import (
	"errors"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// The result of a probe applies to a handler and its aliases, whichever name is probed.
func TestAProbeIsAboutAllNamesOfAHandler(t *testing.T) {
	c := &config.Config{}
	c.DefaultRuntime = "runc"
	c.Runtimes = []*handler.Definition{
		{Name: "crun", Type: handler.OCI, Path: "/c"},
		{Name: "legacy", Type: handler.OCI, Path: "/r", AliasOf: "runc"},
		{Name: "runc", Type: handler.OCI, Path: "/r"},
	}
	b := newBed(t, c)
	for _, asked := range []string{"runc", "legacy"} {
		for _, broken := range []error{errors.New("gone"), nil} {
			b.set(func() { b.failures["/r"] = broken })
			test.Must(t, test.Err(b.m.Probe(t.Context(), asked, probe.Ask)))
			for name, want := range map[string]bool{"runc": broken == nil, "legacy": broken == nil, "crun": true} {
				if h, err := b.m.Handler(name); err != nil || h.State.AcceptsPods() != want {
					t.Errorf("probe of %s, which fails with %v: %s is %v, %v", asked, broken, name, h.State, err)
				}
			}
		}
	}
}
