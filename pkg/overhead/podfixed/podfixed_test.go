package podfixed

import (
	"fmt"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestExceeds(t *testing.T) {
	const m, c = MemoryStep, CPUStep
	for _, x := range []struct {
		what                string
		p95, declared, step uint64
		want                bool
	}{
		{"nothing of nothing", 0, 0, c, false},
		{"noise of nothing", 36_932, 0, c, false},
		{"nearly a step of nothing", c - 1, 0, c, false},
		{"a step of nothing", c, 0, c, true},
		{"as much", 8 * m, 8 * m, m, false},
		{"less", 7 * m, 8 * m, m, false},
		{"rounds to the next step", 8*m + 1, 8 * m, m, false},
		{"a step more", 9 * m, 8 * m, m, true},
		{"less than a step of much", 161*m - 1, 160 * m, m, false},
		{"a step of much", 161 * m, 160 * m, m, true},
		{"CPU that varies", 22_900_000, 21 * c, c, false},
		{"CPU that is more", 24 * c, 21 * c, c, true},
	} {
		got := Exceeds(x.p95, x.declared, x.step)
		test.Equal(t, fmt.Sprint(x.what), got, x.want)
		if got && RoundedUp(x.p95, x.step) < x.declared+x.step {
			t.Errorf("%s: what to declare instead is %d", x.what, RoundedUp(x.p95, x.step))
		}
		if Exceeds(x.p95, RoundedUp(x.p95, x.step), x.step) {
			t.Errorf("%s: what is advised is too little", x.what)
		}
	}
}
