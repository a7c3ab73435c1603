// Package podfixed computes overhead.podFixed of a RuntimeClass from measurements, and decides
// whether a declared value is too small. It is pure. The daemon and "kubectl berth" share it, so
// that both decide alike.
package podfixed

// Units of podFixed: a Mi in bytes, and a thousandth of a core in billionths.
const (
	MemoryStep = 1 << 20
	CPUStep    = 1_000_000
)

// RoundedUp returns the value to declare for a p95, in the unit of step.
func RoundedUp(p95, step uint64) uint64 { return (p95 + step - 1) / step * step }

// Exceeds reports whether p95 is above the declared value by more than noise. Noise is a step, and
// for CPU time also a tenth of the declared value: CPU time varies between measurements, so a value
// from one would be too small for the next. For memory a step is enough: a pod's limit lacks all
// memory that is not declared.
func Exceeds(p95, declared, step uint64) bool {
	noise := step
	if step == CPUStep {
		noise = max(step, declared/10)
	}
	return p95 > declared && p95-declared >= noise
}
