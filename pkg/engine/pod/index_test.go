package pod

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func TestFind(t *testing.T) {
	long := strings.Repeat("a", IDLength)
	all := map[string]int{long: 1, "ab" + long[2:]: 2, "cd" + long[2:]: 3}
	for id, want := range map[string]int{long: 1, "ab": 2, "cd": 3} {
		test.Equal(t, fmt.Sprintf("find %q", id), test.Value(find(all, "sandbox", id))(t), want)
	}
	for id, class := range map[string]func(error) bool{
		"a": errdefs.IsInvalidArgument, "": errdefs.IsInvalidArgument, "ef": errdefs.IsNotFound, strings.Repeat("b", IDLength): errdefs.IsNotFound,
	} {
		if _, err := find(all, "sandbox", id); !class(err) {
			t.Errorf("find %q: %v", id, err)
		}
	}
}

func TestClockNeverRepeats(t *testing.T) {
	c := &Clock{}
	future := time.Now().Add(time.Hour).UnixNano()
	c.Seen(future)
	last := future
	for range 1000 {
		if now := c.Now(); now <= last {
			t.Fatalf("Now returned %d after %d", now, last)
		} else {
			last = now
		}
	}
}
