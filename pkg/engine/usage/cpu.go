package usage

import (
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
)

// CPU converts the CPU usage and its rate.
func CPU(u cgroup.Stats, rate cgroup.Value) *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{
		Timestamp: u.Time.UnixNano(), UsageCoreNanoSeconds: value(u.CPUUsageNano), UsageNanoCores: value(rate), Psi: psi(u.CPUPressure),
	}
}

// Limits of the time between two samples of a rate. A shorter window measures the scheduler's
// ticks; a longer one does not show the present.
const (
	minRateWindow = time.Second
	maxRateWindow = 5 * time.Minute
)

// CPURate is a rate of CPU usage, between the last sample and the one before. Samples are taken
// only when a call requests statistics.
type CPURate struct {
	mu   sync.Mutex
	last sample       // guarded by mu
	rate cgroup.Value // guarded by mu; in nanoseconds per second
}

type sample struct {
	at   time.Time
	nano uint64
}

// Next takes a sample and returns the rate. It is unknown at the first sample, and after a pause
// longer than maxRateWindow.
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
		r.rate = cgroup.Known(uint64(float64(used.N-r.last.nano) / window.Seconds()))
	}
	r.last = sample{at, used.N}
	return r.rate
}
