// Package podfixed decides what overhead.podFixed of a RuntimeClass should be by what
// was measured, and whether what is declared is too little. Pure, and all there is of
// it: the daemon's warning, "lint" and "audit" judge alike.
package podfixed

// What podFixed is written in: a Mi in bytes, and a thousandth of a core in billionths.
const (
	MemoryStep = 1 << 20
	CPUStep    = 1_000_000
)

// RoundedUp is what to declare for a p95, in the unit of step.
func RoundedUp(p95, step uint64) uint64 { return (p95 + step - 1) / step * step }

// Exceeds says whether p95 is more than what is declared by so much that it is no
// noise: by a step, and CPU time by a tenth of what is declared, because that varies
// from one measurement to the next: what was declared by one would else be too little
// by the other. Memory that is not declared is what a pod's limit lacks.
func Exceeds(p95, declared, step uint64) bool {
	noise := step
	if step == CPUStep {
		noise = max(step, declared/10)
	}
	return p95 > declared && p95-declared >= noise
}
