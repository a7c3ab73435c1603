package capacity

import (
	"testing"

	"k8s.io/client-go/util/flowcontrol"
)

// Who answers each change of somebody else's by one of its own would never stop.
func TestPace(t *testing.T) {
	p := pace{nodes: map[string]flowcontrol.RateLimiter{}}
	for range changesAtOnce {
		if !p.takes("a") {
			t.Fatal("what may change at once is held back")
		}
	}
	if p.takes("a") {
		t.Errorf("a node changes more than %d times at once", changesAtOnce)
	}
	if !p.takes("b") {
		t.Error("another node is held back")
	}
	p.forget("a")
	if !p.takes("a") {
		t.Error("a node that is new is held back")
	}
}
