package overhead

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestFixed(t *testing.T) {
	for _, c := range []struct {
		memory, cpu uint64
		want        Declared
	}{
		{0, 0, Declared{}},
		{1, 1, Declared{mi, 1}},
		{mi, 1e6, Declared{mi, 1}},
		{mi + 1, 1e6 + 1, Declared{2 * mi, 2}},
	} {
		e := Estimate{Memory: Distribution{P95: c.memory}, CPU: Distribution{P95: c.cpu}}
		if got := e.Fixed(); got != c.want {
			t.Errorf("%d, %d: %+v, want %+v", c.memory, c.cpu, got, c.want)
		}
	}
}

func TestAbove(t *testing.T) {
	e := &Estimate{Pods: 3, CPUPods: 2, Memory: Distribution{P95: 10 * mi}, CPU: Distribution{P95: 4_500_000}}
	for name, c := range map[string]struct {
		declared Declared
		want     string
	}{
		"nothing is declared": {Declared{}, ""},
		"exactly":             {Declared{10 * mi, 5}, ""},
		"more":                {Declared{20 * mi, 250}, ""},
		"less memory":         {Declared{9 * mi, 0}, "10Mi of memory (p95, pods measured: 3), but its pods declare 9Mi;"},
		"less CPU":            {Declared{0, 3}, "5m of cpu (p95, pods measured: 2), but its pods declare 3m;"},
		"slightly less":       {Declared{9*mi + mi/2, 4}, ""},
		"less of both": {
			Declared{8*mi + mi/2, 1},
			"10Mi of memory (p95, pods measured: 3), but its pods declare 8.5Mi; 5m of cpu (p95, pods measured: 2), but its pods declare 1m;",
		},
	} {
		got := Report{Handler: "kata", Live: e, Declared: c.declared}.Above()
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	test.Equal(t, "without data", (Report{Declared: Declared{1, 1}}).Above(), "")
	unknown := &Estimate{Pods: 1}
	if got := unknown.Above(Declared{1, 1}); len(got) > 0 {
		t.Errorf("with unknown CPU: %v", got)
	}
}
