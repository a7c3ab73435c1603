package overhead

import (
	"fmt"
	"strings"
)

// Report is what is known of a handler's overhead.
type Report struct {
	Handler string
	// Live is that of its pods, Canary that of the last pods of berth's own. Either is
	// nil if there is no data.
	Live, Canary *Estimate
	// NoLive says why Live is nil, in a few words.
	NoLive string
	// Declared is what the kubelet reserves for its pods: the least, if they differ.
	Declared Declared
}

// Best is the estimate of more pods, that of live ones if there are as many; nil
// without data.
func (r Report) Best() *Estimate {
	if r.Live == nil || r.Canary != nil && r.Canary.Pods > r.Live.Pods {
		return r.Canary
	}
	return r.Live
}

// Above says in one line that more is used than the kubelet reserves, or is empty.
func (r Report) Above() string {
	best := r.Best()
	var parts []string
	for _, x := range best.Above(r.Declared) {
		parts = append(parts, fmt.Sprintf("%s of %s, and its pods declare %s", amount(x.Resource, x.Used), x.Resource, amount(x.Resource, x.Declared)))
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("handler %s: overhead is %s (p95, pods measured: %d); raise overhead.podFixed of its RuntimeClass, see \"berth handler overhead %s --yaml\"",
		r.Handler, strings.Join(parts, "; "), best.Pods, r.Handler)
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
