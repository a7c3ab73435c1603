package remote

import (
	"fmt"
	"time"
)

// Phase is the state of a daemon.
type Phase string

const (
	// Ready daemons answer and report that their runtime is ready.
	Ready Phase = "ready"
	// Connected daemons answer, but report that their runtime is not ready, or fail to list.
	Connected Phase = "connected"
	// Lagging daemons are connected and did not answer the last check in time.
	Lagging Phase = "lagging"
	// Down daemons cannot be reached or used, or have not answered for long.
	Down Phase = "down"
)

// Health is the phase of a daemon, and the reason for it.
type Health struct {
	Phase Phase
	// Reason is empty for Ready only.
	Reason string
	// Since is when the phase began.
	Since time.Time
	// Misses counts consecutive checks without an answer in time.
	Misses int
}

// maxMisses is the number of consecutive unanswered checks after which a daemon counts as down.
const maxMisses = 3

// observation is the result of one check.
type observation struct {
	// lost is why the daemon cannot be used, such as a lost connection; empty if it can be used.
	lost string
	// late is why the check timed out; empty if it did not.
	late string
	// unready is why an answering daemon is not ready; otherwise empty.
	unready string
	// reconnected is set while the session is not initialized on the current connection.
	reconnected bool
}

// failed reports whether the daemon cannot be used or did not answer in time.
func (o observation) failed() bool { return o.lost != "" || o.late != "" }

const notAsked = "not checked yet"

// after returns the health that follows from an observation. Pure.
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

// Answers reports whether calls are passed on.
func (h Health) Answers() bool { return h.Phase != Down }
