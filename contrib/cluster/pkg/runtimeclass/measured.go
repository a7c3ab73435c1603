package runtimeclass

import (
	"cmp"
	"fmt"
	"maps"
	"math"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/nodelabel"
	"github.com/berth-cri/berth/pkg/overhead/podfixed"
)

// measuredResource is one resource of a Measurement, in the units of pkg/overhead/podfixed.
type measuredResource struct {
	name corev1.ResourceName
	Distribution
	scale  resource.Scale
	step   uint64
	format resource.Format
}

func (m *Measurement) resources() []measuredResource {
	return []measuredResource{
		{corev1.ResourceCPU, m.CPU, resource.Nano, podfixed.CPUStep, resource.DecimalSI},
		{corev1.ResourceMemory, m.Memory, 0, podfixed.MemoryStep, resource.BinarySI},
	}
}

// scaled returns a quantity in a scale, limited to a value that no node has.
func scaled(q resource.Quantity, scale resource.Scale) uint64 {
	const most = math.MaxInt64 / 2
	if q.Sign() <= 0 {
		return 0
	}
	if q.Cmp(*resource.NewScaledQuantity(most, scale)) > 0 {
		return most
	}
	return uint64(q.ScaledValue(scale)) //nolint:gosec // it is positive
}

// recommended returns p95, rounded up to whole Mi of memory and whole millis of a CPU.
func (m *Measurement) recommended() corev1.ResourceList {
	all := corev1.ResourceList{}
	for _, r := range m.resources() {
		if n := podfixed.RoundedUp(scaled(r.P95, r.scale), r.step); n > 0 {
			q := resource.NewScaledQuantity(int64(n), r.scale) //nolint:gosec // it is bounded
			q.Format = r.format
			all[r.name] = *q
		}
	}
	return all
}

// pods formats the number of pods, such as "10 pods".
func (m *Measurement) pods(d Distribution) string {
	return output.Pods(cmp.Or(d.Pods, m.Pods))
}

// podCounts formats the number of pods measured for memory, and for CPU use if that differs.
func (m *Measurement) podCounts() string {
	memory, cpu := m.pods(m.Memory), m.pods(m.CPU)
	if memory == cpu || m.CPU.Pods == 0 {
		return memory
	}
	return fmt.Sprintf("%s, and of %s for CPU use", memory, cpu)
}

// lintOverhead compares a class's declared overhead with the measured one.
func lintOverhead(c Class, m *Measurement) []Finding {
	recommended := m.recommended()
	declared := corev1.ResourceList{}
	if c.Overhead != nil {
		declared = maps.Clone(c.Overhead.PodFixed)
		delete(declared, corev1.ResourceName(nodelabel.Pods(c.Handler))) // it only counts pods
	}
	var all []Finding
	for _, r := range m.resources() {
		q := declared[r.name]
		if !podfixed.Exceeds(scaled(r.P95, r.scale), scaled(q, r.scale), r.step) {
			continue
		}
		if len(declared) == 0 {
			return []Finding{finding(c, Warning, ruleOverheadMissing, "overhead", "no overhead is declared, so the scheduler does not count "+resources(recommended)+" of each pod",
				fmt.Sprintf("p95 of %s; declare overhead.podFixed: %s", m.podCounts(), resources(recommended)))}
		}
		want := recommended[r.name]
		all = append(all, finding(c, Error, ruleOverheadTooSmall, fmt.Sprintf("overhead.podFixed[%s]", r.name),
			fmt.Sprintf("%s is less than %s, the p95 of %s", q.String(), r.P95.String(), m.pods(r.Distribution)),
			fmt.Sprintf("declare %s", want.String())))
	}
	return all
}
