package overhead

import "github.com/berth-cri/berth/pkg/overhead/podfixed"

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
