package overhead

import (
	"fmt"
	"strings"
)

// Report is what is known of a handler's overhead.
type Report struct {
	Handler string
	// Live is that of its pods; nil without data.
	Live *Estimate
	// NoLive says why Live is nil, in a few words.
	NoLive string
	// Declared is what the kubelet reserves for its pods: the least, if they differ.
	Declared Declared
}

// Above says in one line that more is used than the kubelet reserves, or is empty.
func (r Report) Above() string {
	var parts []string
	for _, x := range r.Live.Above(r.Declared) {
		parts = append(parts, fmt.Sprintf("%s of %s (p95, pods measured: %d), but its pods declare %s",
			amount(x.Resource, x.Used), x.Resource, x.Pods, amount(x.Resource, x.Declared)))
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
