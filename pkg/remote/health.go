package remote

import (
	"fmt"
	"time"
)

// Phase says how a daemon is.
type Phase string

const (
	// Ready answers, and says that its runtime is ready.
	Ready Phase = "ready"
	// Connected answers, and says that its runtime is not ready, or fails to list.
	Connected Phase = "connected"
	// Lagging is connected and did not answer in time lately.
	Lagging Phase = "lagging"
	// Down cannot be reached, or has not answered for long.
	Down Phase = "down"
)

// Health is how a daemon is, and why.
type Health struct {
	Phase Phase
	// Reason is empty for Ready only.
	Reason string
	// Since is when the phase began.
	Since time.Time
	// Misses counts the checks in a row that got no answer in time.
	Misses int
}

// maxMisses is how many checks in a row a daemon may leave unanswered before it
// is taken to be down.
const maxMisses = 3

// observation is what one check saw.
type observation struct {
	// lost is why there was no answer, and none is to be expected; empty if there
	// is a connection.
	lost string
	// late is why there was no answer in time.
	late string
	// unready is what the daemon says its runtime is short of.
	unready string
	// anew says that it is connected to anew since it was told, and asked, all.
	anew bool
}

// failed says whether there was no answer.
func (o observation) failed() bool { return o.lost != "" || o.late != "" }

const notAsked = "not checked yet"

// after is the health that follows from an observation. Pure.
func (h Health) after(o observation, now time.Time) Health {
	n := Health{Since: now}
	switch {
	case o.lost != "":
		n.Phase, n.Reason = Down, o.lost
	case o.late != "":
		n.Phase, n.Reason, n.Misses = Lagging, o.late, h.Misses+1
		if h.Phase == Down {
			n.Phase = Down
			if h.Reason != notAsked {
				n.Reason = h.Reason
			}
		}
		if n.Misses >= maxMisses {
			n.Phase = Down
			n.Reason = fmt.Sprintf("%d consecutive checks failed: %s", n.Misses, o.late)
		}
	case o.unready != "":
		n.Phase, n.Reason = Connected, o.unready
	default:
		n.Phase = Ready
	}
	if n.Phase == h.Phase {
		n.Since = h.Since
	}
	return n
}

// Answers says whether calls are passed on.
func (h Health) Answers() bool { return h.Phase != Down }
