package overhead

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/berth-cri/berth/pkg/overhead/podfixed"
)

// Report is what is known of a handler's overhead.
type Report struct {
	Handler string
	// Live is that of its pods, Canary that of the last pods of berth's own. Either is
	// nil if there is no data.
	Live, SelfCheck *Estimate
	// NoLive says why Live is nil, in a few words.
	NoLive string
	// Declared is what the kubelet reserves for its pods: the least, if they differ.
	Declared Declared
}

// Best has of each resource the estimate with the larger p95, that of live pods if
// they are alike: self-check pods do nothing, and live pods may be few. Nil without data.
func (r Report) Best() *Estimate {
	best, selfCheck := r.Live.of(podfixed.Live), r.SelfCheck.of(podfixed.SelfCheck)
	if best == nil || selfCheck == nil {
		return cmp.Or(best, selfCheck)
	}
	if selfCheck.Memory.P95 > best.Memory.P95 {
		best.Memory, best.MemoryOf, best.Pods, best.At = selfCheck.Memory, selfCheck.MemoryOf, selfCheck.Pods, selfCheck.At
	}
	if selfCheck.CPUPods > 0 && (best.CPUPods == 0 || selfCheck.CPU.P95 > best.CPU.P95) {
		best.CPU, best.CPUOf, best.CPUPods, best.Window = selfCheck.CPU, selfCheck.CPUOf, selfCheck.CPUPods, selfCheck.Window
	}
	return best
}

// of is a copy that says which pods it is of.
func (e *Estimate) of(k podfixed.Kind) *Estimate {
	if e == nil {
		return nil
	}
	known := *e
	known.MemoryOf = k
	if known.CPUPods > 0 {
		known.CPUOf = k
	}
	return &known
}

// Above says in one line that more is used than the kubelet reserves, or is empty.
func (r Report) Above() string {
	var parts []string
	for _, x := range r.Best().Above(r.Declared) {
		parts = append(parts, fmt.Sprintf("%s of %s (p95, %s pods measured: %d), but its pods declare %s",
			amount(x.Resource, x.Used), x.Resource, x.Of, x.Pods, amount(x.Resource, x.Declared)))
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("handler %s: overhead is %s; raise overhead.podFixed of its RuntimeClass, see \"berth handler overhead %s --yaml\"",
		r.Handler, strings.Join(parts, "; "), r.Handler)
}

// amount writes a number in the units of Declared as Kubernetes does.
func amount(resource string, n int64) string {
	if resource == "cpu" {
		return fmt.Sprintf("%dm", n)
	}
	const mi = 1 << 20
	if n%mi != 0 {
		return fmt.Sprintf("%.1fMi", float64(n)/mi)
	}
	return fmt.Sprintf("%dMi", n/mi)
}
