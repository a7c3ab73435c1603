package supervisor_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// maxPSS is the memory budget of a supervisor with forty containers, in KiB: 0.3 MB for each pod.
const maxPSS = 40 * 300

// One supervisor with forty containers that have written stays within its budgets of memory and
// threads.
func TestMemoryOfASupervisorWithFortyContainers(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector needs more memory than the budget")
	}
	const containers = 40
	b := newBed(t, findRuntime(t, "crun"))
	empty := b.pss()
	for n := range containers {
		b.run(fmt.Sprint("c", n), shell("seq 1 1000; sleep 1000"))
	}
	for _, c := range b.containers {
		c.said("1000")
	}
	full := b.pss()
	threads := test.Value(os.ReadDir(fmt.Sprintf("/proc/%d/task", b.cmd.Process.Pid)))(t)
	t.Logf("PSS of a supervisor: %d KiB without containers, %d KiB with %d; %d threads", empty, full, containers, len(threads))
	if full > maxPSS {
		t.Errorf("PSS is %d KiB, want at most %d", full, maxPSS)
	}
	if len(threads) > 20 {
		t.Errorf("the supervisor has %d threads, want at most 20", len(threads))
	}
}

// pss returns the supervisor's proportional set size in KiB.
func (b *bed) pss() int {
	b.Helper()
	text := test.Value(os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", b.cmd.Process.Pid)))(b)
	for line := range strings.Lines(string(text)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kib); n == 1 {
			return kib
		}
	}
	b.Fatalf("no PSS in %q", text)
	return 0
}
