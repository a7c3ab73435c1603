package daemon

import (
	"testing"
	"time"

	"github.com/berth-cri/berth/pkg/remote"
)

// A handler is probed again after each absence of its daemon, however short.
func TestWhatIsTheSameHealth(t *testing.T) {
	begin := time.Now()
	ready := remote.Health{Phase: remote.Ready, Since: begin}
	for name, c := range map[string]struct {
		now  remote.Health
		same bool
	}{
		"nothing happened":     {ready, true},
		"one check was missed": {remote.Health{Phase: remote.Ready, Since: begin, Misses: 1}, true},
		"the daemon is away":   {remote.Health{Phase: remote.Down, Since: begin, Reason: "gone"}, false},
		"the daemon was away":  {remote.Health{Phase: remote.Ready, Since: begin.Add(time.Second)}, false},
	} {
		if same(ready, c.now) != c.same {
			t.Errorf("%s: same is %v", name, !c.same)
		}
	}
}
