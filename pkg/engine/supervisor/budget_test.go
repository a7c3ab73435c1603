package supervisor_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// maxPSS is what one supervisor may cost with forty containers, in KiB: the
// budget is 0.3 MB for each pod.
const maxPSS = 40 * 300

// One supervisor holds forty containers that have written, and does not cost
// more than it may.
func TestMemoryOfASupervisorWithFortyContainers(t *testing.T) {
	if raceDetector {
		t.Skip("without the race detector: it costs more than the budget")
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
		t.Errorf("PSS is %d KiB, more than %d", full, maxPSS)
	}
	if len(threads) > 20 {
		t.Errorf("%d threads", len(threads))
	}
}

// pss is the supervisor's share of memory, in KiB.
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
