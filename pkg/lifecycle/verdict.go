package lifecycle

import (
	"time"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

const (
	// transientFor is how long a ready handler stays ready while its probes are inconclusive (see
	// probe.Transient).
	transientFor = 15 * time.Second
	// longestRetry is the longest time between two probes after a failure.
	longestRetry = 8 * time.Second
)

type result struct {
	definition *handler.Definition
	at         time.Time
	depth      probe.Depth
	runtime    *probe.Runtime
	err        error
	// table holds the handler's capabilities, if learned.
	table   capability.Table
	learned bool
}

// verdict is the accumulated result of a Definition's probes.
type verdict struct {
	at      time.Time
	failure string
	// transient is the failure of an inconclusive probe that does not count yet.
	transient string
	// tries counts the failed probes since the last success; since is the time of the first.
	tries int
	since time.Time
	// depth is the greatest depth of these probes, at least Ask.
	depth probe.Depth
	// failed is the SHA256 of the program in the last failed probe; empty if unknown.
	failed string
	// runtime is the result of the last successful probe of this digest.
	runtime *probe.Runtime
	// table holds the handler's capabilities from the last successful probe that checked them.
	table   capability.Table
	learned bool
}

// after returns the verdict after one more probe; known is set if there was a verdict before. It
// applies the rule for inconclusive probes (see probe.Transient). Pure.
func (v verdict) after(r result, known bool) verdict {
	if r.err == nil {
		next := verdict{at: r.at, runtime: r.runtime, table: v.table, learned: v.learned}
		if r.learned {
			next.table, next.learned = r.table, true
		}
		return next
	}
	next := v
	next.at, next.tries, next.depth = r.at, v.tries+1, max(v.depth, r.depth, probe.Ask)
	next.failure, next.transient, next.failed = "", "", ""
	if v.tries == 0 {
		next.since = r.at
	}
	if r.runtime != nil {
		next.failed = r.runtime.SHA256
	}
	if known && v.failure == "" && r.depth != probe.RunPod && probe.Transient(r.err) && r.at.Sub(next.since) < transientFor {
		next.transient = printable.Line(printable.Error(r.err))
		return next
	}
	next.failure = printable.Line(printable.Error(r.err))
	// The table is from the last successful probe. After a failure its pod checks no longer hold.
	next.table.Conforms = nil
	return next
}

// due reports whether to retry a failed probe: after 1, 2, 4 and then every 8 seconds, or after
// interval if that is less and not 0. Pure.
func (v verdict) due(now time.Time, interval time.Duration) bool {
	if v.tries == 0 {
		return false
	}
	wait := longestRetry
	if v.tries <= 4 {
		wait = time.Second << (v.tries - 1)
	}
	if interval > 0 {
		wait = min(wait, interval)
	}
	return now.Sub(v.at) >= wait
}
