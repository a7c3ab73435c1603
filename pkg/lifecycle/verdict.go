package lifecycle

import (
	"time"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

const (
	// doubtFor is how long a handler that was ready stays so although probes of it
	// fail for what may pass.
	doubtFor = 15 * time.Second
	// longestRetry is the longest time between two looks at what failed.
	longestRetry = 8 * time.Second
)

type result struct {
	definition *handler.Definition
	at         time.Time
	depth      probe.Depth
	runtime    *probe.Runtime
	err        error
	// table is what the handler can do, if that was learned.
	table   capability.Table
	learned bool
}

// verdict is what probes found.
type verdict struct {
	at      time.Time
	failure string
	// doubt is a failure that does not count yet, because it may pass.
	doubt string
	// tries are the probes that failed since the last good one, the first at since.
	tries int
	since time.Time
	// depth is how closely probes looked that failed since.
	depth probe.Depth
	// failed is the SHA256 of the program that the last probe failed of; empty if
	// that is not known.
	failed string
	// runtime is what the last good probe of this digest saw.
	runtime *probe.Runtime
	// table is what the handler can do, as of the last good probe that learned it.
	table   capability.Table
	learned bool
}

// after is what follows from one more probe. known says that there was one before. A
// probe that runs a pod because starts failed is not doubted. Pure.
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
	next.failure, next.doubt, next.failed = "", "", ""
	if v.tries == 0 {
		next.since = r.at
	}
	if r.runtime != nil {
		next.failed = r.runtime.SHA256
	}
	if known && v.failure == "" && r.depth != probe.RunPod && probe.Transient(r.err) && r.at.Sub(next.since) < doubtFor {
		next.doubt = printable.Line(printable.Error(r.err))
		return next
	}
	next.failure = printable.Line(printable.Error(r.err))
	// A table is of what ran last. What its pods keep to is a promise for the next.
	next.table.Conforms = nil
	return next
}

// due says whether what failed is to be looked at again: after 1, 2, 4 and then
// every 8 seconds, or the interval if that is less and not 0. Pure.
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
