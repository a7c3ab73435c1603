package overhead

import (
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/pkg/overhead/podfixed"
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
		"as much":             {Declared{10 * mi, 5}, ""},
		"more":                {Declared{20 * mi, 250}, ""},
		"less memory":         {Declared{9 * mi, 0}, "10Mi of memory (p95, live pods measured: 3), but its pods declare 9Mi;"},
		"less CPU":            {Declared{0, 3}, "5m of cpu (p95, live pods measured: 2), but its pods declare 3m;"},
		"noise":               {Declared{9*mi + mi/2, 4}, ""},
		"less of both": {
			Declared{8*mi + mi/2, 1},
			"10Mi of memory (p95, live pods measured: 3), but its pods declare 8.5Mi; 5m of cpu (p95, live pods measured: 2), but its pods declare 1m;",
		},
	} {
		got := Report{Handler: "kata", Live: e, Declared: c.declared}.Above()
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := (Report{Declared: Declared{1, 1}}).Above(); got != "" {
		t.Errorf("without data: %q", got)
	}
	unknown := &Estimate{Pods: 1}
	if got := unknown.Above(Declared{1, 1}); len(got) > 0 {
		t.Errorf("CPU that is not known: %v", got)
	}
}

func TestBest(t *testing.T) {
	at := func(n int64) time.Time { return time.Unix(n, 0) }
	estimate := func(pods int, memory, cpu uint64, cpuPods int) *Estimate {
		return &Estimate{
			Pods: pods, CPUPods: cpuPods, Memory: Distribution{P95: memory}, CPU: Distribution{P95: cpu},
			At: at(int64(pods)), Window: time.Duration(cpuPods) * time.Second,
		}
	}
	from := func(e *Estimate, memory, cpu podfixed.Kind) *Estimate {
		e.MemoryOf, e.CPUOf = memory, cpu
		return e
	}
	for name, c := range map[string]struct{ live, selfCheck, want *Estimate }{
		"none":                           {nil, nil, nil},
		"live":                           {estimate(2, 8, 1, 2), nil, from(estimate(2, 8, 1, 2), podfixed.Live, podfixed.Live)},
		"live of unknown CPU":            {estimate(2, 8, 0, 0), nil, from(estimate(2, 8, 0, 0), podfixed.Live, "")},
		"self-check pods":                {nil, estimate(3, 8, 1, 3), from(estimate(3, 8, 1, 3), podfixed.SelfCheck, podfixed.SelfCheck)},
		"alike":                          {estimate(2, 8, 1, 2), estimate(3, 8, 1, 3), from(estimate(2, 8, 1, 2), podfixed.Live, podfixed.Live)},
		"more self-check pods use less":  {estimate(2, 8, 5, 2), estimate(3, 3, 1, 3), from(estimate(2, 8, 5, 2), podfixed.Live, podfixed.Live)},
		"self-check pods use more":       {estimate(5, 8, 5, 5), estimate(3, 9, 6, 3), from(estimate(3, 9, 6, 3), podfixed.SelfCheck, podfixed.SelfCheck)},
		"self-check pods alone tell CPU": {estimate(5, 8, 0, 0), estimate(3, 3, 0, 3), from(estimate(5, 8, 0, 3), podfixed.Live, podfixed.SelfCheck)},
		"one more of each":               {estimate(5, 8, 1, 4), estimate(3, 9, 0, 3), from(estimate(3, 9, 1, 4), podfixed.SelfCheck, podfixed.Live)},
	} {
		got := Report{Live: c.live, SelfCheck: c.selfCheck}.Best()
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		if c.live != nil && c.live.MemoryOf != "" || c.selfCheck != nil && c.selfCheck.MemoryOf != "" {
			t.Errorf("%s: what was measured changed", name)
		}
	}
}
