package rollout

import (
	"fmt"
	"testing"
	"time"
)

func TestShareOfFailures(t *testing.T) {
	for _, c := range []struct {
		begun, failed, usual, bad int
		abort                     bool
	}{
		{3, 2, 0, 0, false},
		{3, 3, 0, 0, true},
		{100, 19, 0, 0, false},
		{100, 20, 0, 0, true},
		{100, 20, 100, 1, false}, // 19 points above the stable pods
		{100, 21, 100, 1, true},
		{10, 10, 10, 10, false}, // nothing can start on this node
		{10, 10, 10, 9, false},
		{10, 10, 10, 8, true},
		{3, 3, 2, 2, true}, // two stable pods are too few to compare
		{3, 3, 3, 3, false},
	} {
		one := newTally(key{})
		fill := func(s sample, begun, failed int) {
			for i := range begun {
				s.add(fmt.Sprint(i), i < failed, time.Now())
			}
		}
		fill(one.candidate, c.begun, c.failed)
		fill(one.stable, c.usual, c.bad)
		if one.exceeds() != c.abort {
			t.Errorf("%+v: got %v", c, !c.abort)
		}
	}
}

// A tally belongs to one program: it continues when the program's checksum becomes known, and
// another program gets a new tally.
func TestTallyOfAProgram(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		before, after key
		goesOn        bool
	}{
		"the same program":                {key{"d", "a"}, key{"d", "a"}, true},
		"its checksum becomes known":      {key{"d", ""}, key{"d", "a"}, true},
		"its checksum is unknown now":     {key{"d", "a"}, key{"d", ""}, true},
		"another program":                 {key{"d", "a"}, key{"d", "b"}, false},
		"another Definition":              {key{"d", "a"}, key{"e", "a"}, false},
		"another Definition, no checksum": {key{"d", ""}, key{"e", ""}, false},
	} {
		all := tallies{running: map[string]*tally{}}
		before := all.of("runc", c.before, now)
		if after := all.of("runc", c.after, now); (after == before) != c.goesOn {
			t.Errorf("%s: the tally continues: %v", name, after == before)
		}
	}
	all := tallies{running: map[string]*tally{}}
	all.of("runc", key{"d", ""}, now)
	all.of("runc", key{"d", "a"}, now)
	if one := all.of("runc", key{"d", "b"}, now); one.key.sha256 != "b" || all.of("other", key{"d", "b"}, now) == one {
		t.Error("the tally lost its checksum, or two handlers share it")
	}
}
