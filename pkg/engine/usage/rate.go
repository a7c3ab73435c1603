package usage

import (
	"sync"
	"time"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
)

// The time between two samples that give a rate. Closer ones measure the
// scheduler's ticks, and older ones a past that nobody asks about.
const (
	minRateWindow = time.Second
	maxRateWindow = 5 * time.Minute
)

// CPURate is how fast something uses CPU time: between the last sample and the
// one before. Samples are taken when somebody asks, never ahead of that.
type CPURate struct {
	mu   sync.Mutex
	last sample       // guarded by mu
	rate cgroup.Value // guarded by mu; in nanoseconds per second
}

type sample struct {
	at   time.Time
	nano uint64
}

// Next takes a sample and returns the rate. It is not known at the first one, and
// after a time in which nobody asked.
func (r *CPURate) Next(at time.Time, used cgroup.Value) cgroup.Value {
	if !used.Known {
		return cgroup.Value{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	window := at.Sub(r.last.at)
	if !r.last.at.IsZero() && window < minRateWindow {
		return r.rate
	}
	r.rate = cgroup.Value{}
	if window <= maxRateWindow && used.N >= r.last.nano {
		r.rate = cgroup.Value{Known: true, N: uint64(float64(used.N-r.last.nano) / window.Seconds())}
	}
	r.last = sample{at, used.N}
	return r.rate
}
