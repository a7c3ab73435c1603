package overhead

import (
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
		want   sample
	}{
		"nothing":     {nil, Reading{}, sample{}},
		"one reading": {nil, Reading{Parts: []Part{{"a", 10 * mi, sec, 1}}}, sample{Memory: 10 * mi}},
		"an exclusive part": {
			&Reading{Parts: []Part{{"a", 99 * mi, sec, 1}}},
			Reading{Parts: []Part{{"a", 10 * mi, 2 * sec, 1}}},
			sample{Memory: 10 * mi, CPU: 1e8, CPUKnown: true},
		},
		"shared by four": {
			&Reading{Parts: []Part{{"a", 0, sec, 4}}},
			Reading{Parts: []Part{{"a", 8 * mi, 2 * sec, 4}}},
			sample{Memory: 2 * mi, CPU: 25e6, CPUKnown: true},
		},
		"a shared and an exclusive part": {
			&Reading{Parts: []Part{{"a", 0, 0, 2}, {"b", 0, sec, 1}}},
			Reading{Parts: []Part{{"a", 8 * mi, sec, 2}, {"b", 3 * mi, 2 * sec, 1}}},
			sample{Memory: 7 * mi, CPU: 15e7, CPUKnown: true},
		},
		"a new part": {
			&Reading{Parts: []Part{{"a", 0, sec, 1}}},
			Reading{Parts: []Part{{"a", mi, sec, 1}, {"b", mi, 9 * sec, 1}}},
			sample{Memory: 2 * mi, CPUKnown: true},
		},
		"a removed part": {
			&Reading{Parts: []Part{{"a", 0, sec, 1}, {"b", 7 * mi, sec, 1}}},
			Reading{Parts: []Part{{"a", mi, 2 * sec, 1}}},
			sample{Memory: mi, CPU: 1e8, CPUKnown: true},
		},
		"a counter that was reset": {
			&Reading{Parts: []Part{{"a", 0, 9 * sec, 1}}},
			Reading{Parts: []Part{{"a", mi, sec, 1}}},
			sample{Memory: mi, CPUKnown: true},
		},
	} {
		if got := sampleBetween(c.before, c.after, 10*sec); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestEstimated(t *testing.T) {
	if e := estimateOf(nil); e != nil {
		t.Errorf("the estimate of no samples is %+v", e)
	}
	one := estimateOf([]sample{{Memory: 5}})
	if want := (Distribution{5, 5, 5}); one.Memory != want || one.Pods != 1 || one.CPUPods != 0 || one.CPU != (Distribution{}) {
		t.Errorf("one sample: %+v", one)
	}
	var many []sample
	for i := range uint64(20) {
		many = append(many, sample{Memory: 20 - i, CPU: 100 * (i + 1), CPUKnown: i > 9})
	}
	e := estimateOf(many)
	if want := (Distribution{10, 19, 20}); e.Memory != want {
		t.Errorf("memory %+v, want %+v", e.Memory, want)
	}
	if want := (Distribution{1500, 2000, 2000}); e.CPU != want || e.CPUPods != 10 || e.Pods != 20 {
		t.Errorf("cpu %+v of %d, want %+v", e.CPU, e.CPUPods, want)
	}
	if e := estimateOf([]sample{{Memory: 1}, {Memory: 3}}); e.Memory != (Distribution{1, 3, 3}) {
		t.Errorf("two samples: %+v", e.Memory)
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
