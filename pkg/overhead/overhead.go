// Package overhead says what pods cost beyond their containers: the memory and CPU
// time of their sandbox processes, shims, supervisors, monitors and VMMs.
//
// What is read of pods comes from a Source; what follows from that is decided here,
// by pure functions. Without pods there is no estimate. Nothing is read ahead of a
// question, and for a row of questions once a minute.
//
// docs/runtimeclass.md tells what is counted, and what is not.
package overhead

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/overhead/podfixed"
)

// Part is one cgroup or process that a pod has beyond its containers.
type Part struct {
	// Key tells the parts of a node apart, also over time.
	Key string
	// Memory is in bytes.
	Memory uint64
	// CPU is the time used since the part exists.
	CPU time.Duration
	// Pods is how many share it, this one included; at least 1.
	Pods int
}

// Reading is what one pod has at one moment.
type Reading struct {
	Pod   string
	Parts []Part
}

// Declared is the overhead that somebody reserves for a pod. Zero is none.
type Declared struct {
	// Memory is in bytes, CPU in thousandths of a core.
	Memory, CPU int64
}

// Sample is the overhead of one pod.
type Sample struct {
	// Memory is in bytes.
	Memory uint64
	// CPU is in billionths of a core. It is not known at the first reading of a pod.
	CPU      uint64
	CPUKnown bool
}

// sampleBetween makes a Sample of two readings of a pod that are window apart; before is
// nil if there is only one. Memory is that of the second. CPU time is that of the
// parts that are in both: of one that came meanwhile nobody knows how it began.
func sampleBetween(before *Reading, after Reading, window time.Duration) Sample {
	var s Sample
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

// Distribution is that of one resource over pods.
type Distribution struct{ P50, P95, Max uint64 }

// Estimate is what the pods of a handler were measured to use.
type Estimate struct {
	// Pods is how many Memory is of, at least one.
	Pods int
	// Memory is in bytes, CPU in billionths of a core.
	Memory, CPU Distribution
	// CPUPods is how many pods CPU is of.
	CPUPods int
	// At is when that was, and Window how long CPU time was watched; 0 without CPUPods.
	At     time.Time
	Window time.Duration
}

// estimateOf makes an Estimate, or nil of no samples. At and Window are the caller's.
func estimateOf(samples []Sample) *Estimate {
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

// distribution takes the nearest rank: each number is one that was measured.
func distribution(all []uint64) Distribution {
	if len(all) == 0 {
		return Distribution{}
	}
	slices.Sort(all)
	rank := func(percent int) uint64 { return all[(len(all)*percent+99)/100-1] }
	return Distribution{P50: rank(50), P95: rank(95), Max: all[len(all)-1]}
}

// least is what is declared of the resource by whoever declares the least of it.
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

// Fixed is what to declare: p95, in whole Mi and thousandths of a core, rounded up.
func (e *Estimate) Fixed() Declared {
	return Declared{Memory: int64(podfixed.RoundedUp(e.Memory.P95, podfixed.MemoryStep)), CPU: int64(podfixed.RoundedUp(e.CPU.P95, podfixed.CPUStep) / podfixed.CPUStep)} //nolint:gosec // a node has less
}

// Excess is a resource of which more is used than was declared.
type Excess struct {
	// Resource is "memory" or "cpu", in the units of Declared.
	Resource       string
	Used, Declared int64
	// Pods is how many use that.
	Pods int
}

// Above compares p95 with what is declared. What is not declared is not compared.
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
