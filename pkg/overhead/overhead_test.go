package overhead

import (
	"strings"
	"testing"
	"time"
)

const (
	mi  = 1 << 20
	sec = time.Second
)

func TestBetween(t *testing.T) {
	for name, c := range map[string]struct {
		before *Reading
		after  Reading
		want   Sample
	}{
		"nothing":     {nil, Reading{}, Sample{}},
		"one reading": {nil, Reading{Parts: []Part{{"a", 10 * mi, sec, 1}}}, Sample{Memory: 10 * mi}},
		"its own part": {
			&Reading{Parts: []Part{{"a", 99 * mi, sec, 1}}},
			Reading{Parts: []Part{{"a", 10 * mi, 2 * sec, 1}}},
			Sample{Memory: 10 * mi, CPU: 1e8, CPUKnown: true},
		},
		"shared by four": {
			&Reading{Parts: []Part{{"a", 0, sec, 4}}},
			Reading{Parts: []Part{{"a", 8 * mi, 2 * sec, 4}}},
			Sample{Memory: 2 * mi, CPU: 25e6, CPUKnown: true},
		},
		"both": {
			&Reading{Parts: []Part{{"a", 0, 0, 2}, {"b", 0, sec, 1}}},
			Reading{Parts: []Part{{"a", 8 * mi, sec, 2}, {"b", 3 * mi, 2 * sec, 1}}},
			Sample{Memory: 7 * mi, CPU: 15e7, CPUKnown: true},
		},
		"one came meanwhile": {
			&Reading{Parts: []Part{{"a", 0, sec, 1}}},
			Reading{Parts: []Part{{"a", mi, sec, 1}, {"b", mi, 9 * sec, 1}}},
			Sample{Memory: 2 * mi, CPUKnown: true},
		},
		"one went meanwhile": {
			&Reading{Parts: []Part{{"a", 0, sec, 1}, {"b", 7 * mi, sec, 1}}},
			Reading{Parts: []Part{{"a", mi, 2 * sec, 1}}},
			Sample{Memory: mi, CPU: 1e8, CPUKnown: true},
		},
		"a counter that began anew": {
			&Reading{Parts: []Part{{"a", 0, 9 * sec, 1}}},
			Reading{Parts: []Part{{"a", mi, sec, 1}}},
			Sample{Memory: mi, CPUKnown: true},
		},
	} {
		if got := Between(c.before, c.after, 10*sec); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestEstimated(t *testing.T) {
	if e := Estimated(nil); e != nil {
		t.Errorf("no samples are %+v", e)
	}
	one := Estimated([]Sample{{Memory: 5}})
	if want := (Distribution{5, 5, 5}); one.Memory != want || one.Pods != 1 || one.CPUPods != 0 || one.CPU != (Distribution{}) {
		t.Errorf("one: %+v", one)
	}
	var many []Sample
	for i := range uint64(20) {
		many = append(many, Sample{Memory: 20 - i, CPU: 100 * (i + 1), CPUKnown: i > 9})
	}
	e := Estimated(many)
	if want := (Distribution{10, 19, 20}); e.Memory != want {
		t.Errorf("memory %+v, want %+v", e.Memory, want)
	}
	if want := (Distribution{1500, 2000, 2000}); e.CPU != want || e.CPUPods != 10 || e.Pods != 20 {
		t.Errorf("cpu %+v of %d, want %+v", e.CPU, e.CPUPods, want)
	}
	if e := Estimated([]Sample{{Memory: 1}, {Memory: 3}}); e.Memory != (Distribution{1, 3, 3}) {
		t.Errorf("two: %+v", e.Memory)
	}
}

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
	e := &Estimate{Pods: 3, CPUPods: 3, Memory: Distribution{P95: 10 * mi}, CPU: Distribution{P95: 4_500_000}}
	for name, c := range map[string]struct {
		declared Declared
		want     string
	}{
		"nothing is declared": {Declared{}, ""},
		"as much":             {Declared{10 * mi, 5}, ""},
		"more":                {Declared{20 * mi, 250}, ""},
		"less memory":         {Declared{9 * mi, 0}, "10Mi of memory, and its pods declare 9Mi"},
		"less CPU":            {Declared{0, 4}, "5m of cpu, and its pods declare 4m"},
		"less of both":        {Declared{9*mi + mi/2, 1}, "10Mi of memory, and its pods declare 9.5Mi; 5m of cpu, and its pods declare 1m"},
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
	live, canary, more := &Estimate{Pods: 5}, &Estimate{Pods: 5}, &Estimate{Pods: 6}
	for name, c := range map[string]struct {
		report Report
		want   *Estimate
	}{
		"none":            {Report{}, nil},
		"live":            {Report{Live: live}, live},
		"canaries":        {Report{Canary: canary}, canary},
		"as many":         {Report{Live: live, Canary: canary}, live},
		"more of berth's": {Report{Live: live, Canary: more}, more},
		"more that live":  {Report{Live: more, Canary: canary}, more},
	} {
		if got := c.report.Best(); got != c.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestLeast(t *testing.T) {
	for _, c := range []struct {
		all  []Declared
		want Declared
	}{
		{nil, Declared{}},
		{[]Declared{{}, {5, 0}, {}}, Declared{5, 0}},
		{[]Declared{{5, 9}, {3, 0}, {7, 4}}, Declared{3, 4}},
	} {
		if got := least(c.all); got != c.want {
			t.Errorf("%v: %v, want %v", c.all, got, c.want)
		}
	}
}
