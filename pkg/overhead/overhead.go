// Package overhead measures the cost of pods beyond their containers: the memory and CPU time of
// their sandbox processes, shims, supervisors, monitors and VMMs.
//
// Readings come from Options.Pods; pure functions here turn them into estimates. Without pods there
// is no estimate. Pods are read on demand, at most once a minute after the second reading.
//
// docs/runtimeclass-reference.md lists what is counted.
package overhead

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/overhead/podfixed"
)

// Part is a cgroup or process of a pod beyond its containers.
type Part struct {
	// Key identifies the part on a node over time.
	Key string
	// Memory is in bytes.
	Memory uint64
	// CPU is the time used since the part was created.
	CPU time.Duration
	// Pods is the number of pods that share it, including this one; at least 1.
	Pods int
}

// Reading holds the parts of one pod at one moment.
type Reading struct {
	Pod   string
	Parts []Part
}

// Declared is the reserved overhead of a pod. Zero means none.
type Declared struct {
	// Memory is in bytes, CPU in thousandths of a core.
	Memory, CPU int64
}

// sample is the overhead of one pod.
type sample struct {
	// Memory is in bytes.
	Memory uint64
	// CPU is in billionths of a core. It is unknown at the first reading of a pod.
	CPU      uint64
	CPUKnown bool
}

// sampleBetween computes a sample from two readings of a pod that are window apart; before is nil
// if there is only one. Memory is that of the second. CPU time is that of the parts in both,
// because the start of a newer part is unknown.
func sampleBetween(before *Reading, after Reading, window time.Duration) sample {
	var s sample
	was := map[string]time.Duration{}
	if before != nil {
		for _, p := range before.Parts {
			was[p.Key] = p.CPU
		}
	}
	var used float64 // seconds
	for _, p := range after.Parts {
		share := max(p.Pods, 1)
		s.Memory += p.Memory / uint64(share)
		if cpu, there := was[p.Key]; there && p.CPU > cpu {
			used += (p.CPU - cpu).Seconds() / float64(share)
		}
	}
	if before != nil && window > 0 {
		s.CPU, s.CPUKnown = uint64(used/window.Seconds()*1e9), true
	}
	return s
}

// Distribution describes one resource over pods.
type Distribution struct{ P50, P95, Max uint64 }

// Estimate is the measured use of a handler's pods.
type Estimate struct {
	// Pods is the number of pods in Memory, at least 1.
	Pods int
	// Memory is in bytes, CPU in billionths of a core.
	Memory, CPU Distribution
	// CPUPods is the number of pods in CPU.
	CPUPods int
	// At is the time of the reading. Window is how long CPU time was observed; 0 without CPUPods.
	At     time.Time
	Window time.Duration
}

// estimateOf computes an Estimate; nil without samples. The caller sets At and Window.
func estimateOf(samples []sample) *Estimate {
	if len(samples) == 0 {
		return nil
	}
	e := &Estimate{Pods: len(samples)}
	var memory, cpu []uint64
	for _, s := range samples {
		memory = append(memory, s.Memory)
		if s.CPUKnown {
			cpu = append(cpu, s.CPU)
		}
	}
	e.Memory, e.CPU, e.CPUPods = distribution(memory), distribution(cpu), len(cpu)
	return e
}

// distribution uses the nearest rank, so that each result is a measured value.
func distribution(all []uint64) Distribution {
	if len(all) == 0 {
		return Distribution{}
	}
	slices.Sort(all)
	rank := func(percent int) uint64 { return all[(len(all)*percent+99)/100-1] }
	return Distribution{P50: rank(50), P95: rank(95), Max: all[len(all)-1]}
}

// least returns the smallest reservation of each resource, ignoring those without one.
func least(all []Declared) Declared {
	smaller := func(a, b int64) int64 {
		if a == 0 || b == 0 {
			return cmp.Or(a, b)
		}
		return min(a, b)
	}
	var d Declared
	for _, one := range all {
		d.Memory, d.CPU = smaller(d.Memory, one.Memory), smaller(d.CPU, one.CPU)
	}
	return d
}

// Report is the known overhead of a handler.
type Report struct {
	Handler string
	// Live is the measured overhead; nil without data.
	Live *Estimate
	// NoLive is the reason why Live is nil, in a few words.
	NoLive string
	// Declared is the kubelet's reservation for a pod: the least, if pods differ.
	Declared Declared
}

// Above returns one line if the use exceeds the kubelet's reservation, else "".
func (r Report) Above() string {
	var parts []string
	for _, x := range r.Live.Above(r.Declared) {
		parts = append(parts, fmt.Sprintf("%s of %s (p95, pods measured: %d), but its pods declare %s",
			amount(x.Resource, x.Used), x.Resource, x.Pods, amount(x.Resource, x.Declared)))
	}
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("handler %s: overhead is %s; raise overhead.podFixed of its RuntimeClass, see \"berth handler overhead %s --pod-fixed\"",
		r.Handler, strings.Join(parts, "; "), r.Handler)
}

// amount formats a number in the units of Declared as Kubernetes does.
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

// Fixed returns the overhead to declare: p95, in whole Mi and thousandths of a core, rounded up.
func (e *Estimate) Fixed() Declared {
	return Declared{Memory: int64(podfixed.RoundedUp(e.Memory.P95, podfixed.MemoryStep)), CPU: int64(podfixed.RoundedUp(e.CPU.P95, podfixed.CPUStep) / podfixed.CPUStep)} //nolint:gosec // a node has less
}

// Excess is a resource with more use than was declared.
type Excess struct {
	// Resource is "memory" or "cpu", in the units of Declared.
	Resource       string
	Used, Declared int64
	// Pods is the number of measured pods.
	Pods int
}

// Above compares p95 with the declared overhead. It skips undeclared resources.
func (e *Estimate) Above(d Declared) []Excess {
	if e == nil {
		return nil
	}
	var all []Excess
	if d.Memory > 0 && podfixed.Exceeds(e.Memory.P95, uint64(d.Memory), podfixed.MemoryStep) {
		all = append(all, Excess{"memory", int64(e.Memory.P95), d.Memory, e.Pods}) //nolint:gosec // a node has less
	}
	if d.CPU > 0 && e.CPUPods > 0 && podfixed.Exceeds(e.CPU.P95, uint64(d.CPU)*podfixed.CPUStep, podfixed.CPUStep) {
		all = append(all, Excess{"cpu", e.Fixed().CPU, d.CPU, e.CPUPods})
	}
	return all
}
