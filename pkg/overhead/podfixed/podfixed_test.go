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
		{"0, nothing declared", 0, 0, c, false},
		{"little, nothing declared", 36_932, 0, c, false},
		{"almost a step, nothing declared", c - 1, 0, c, false},
		{"a step, nothing declared", c, 0, c, true},
		{"as declared", 8 * m, 8 * m, m, false},
		{"less than declared", 7 * m, 8 * m, m, false},
		{"rounded up to the next step", 8*m + 1, 8 * m, m, false},
		{"a step more", 9 * m, 8 * m, m, true},
		{"less than a step above much", 161*m - 1, 160 * m, m, false},
		{"a step above much", 161 * m, 160 * m, m, true},
		{"CPU that varies", 22_900_000, 21 * c, c, false},
		{"CPU far above", 24 * c, 21 * c, c, true},
	} {
		got := Exceeds(x.p95, x.declared, x.step)
		test.Equal(t, fmt.Sprint(x.what), got, x.want)
		if got && RoundedUp(x.p95, x.step) < x.declared+x.step {
			t.Errorf("%s: the advised declaration is only %d", x.what, RoundedUp(x.p95, x.step))
		}
		if Exceeds(x.p95, RoundedUp(x.p95, x.step), x.step) {
			t.Errorf("%s: the advised declaration is exceeded too", x.what)
		}
	}
}
