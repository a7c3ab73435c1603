package preflight

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/probe"
)

// A memory limit in which gVisor itself cannot run is refused, for gVisor alone. A slightly
// larger one is accepted: what gVisor needs depends on its release.
func TestMemory(t *testing.T) {
	gVisor := Handler{Name: "gvisor", Runtime: &probe.Runtime{Name: probe.Runsc, Version: "20260831"}}
	for name, c := range map[string]struct {
		limit uint64
		h     Handler
		want  string
	}{
		"no limit":          {0, gVisor, ""},
		"far too little":    {512 << 10, gVisor, "a memory limit of 0.5Mi for the whole pod: runsc 20260831 itself needs 24Mi"},
		"too little":        {20 << 20, gVisor, "a memory limit of 20Mi for the whole pod: runsc 20260831 itself needs 24Mi"},
		"almost enough":     {21 << 20, gVisor, ""},
		"enough":            {24 << 20, gVisor, ""},
		"runc":              {1 << 20, Handler{Runtime: &probe.Runtime{Name: probe.Runc}}, ""},
		"a VM":              {1 << 20, Handler{Runtime: &probe.Runtime{ShimAlone: true}}, ""},
		"no probed runtime": {1 << 20, Handler{}, ""},
	} {
		err := Refuse(c.h, func() []Handler { return nil }, func(h Handler) *Refusal { return Memory(c.limit, h) })
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
