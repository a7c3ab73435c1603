package supervisor_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", b.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
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
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", b.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int
		if n, _ := fmt.Sscanf(line, "Pss: %d kB", &kib); n == 1 {
			return kib
		}
	}
	b.Fatalf("no PSS in %q", text)
	return 0
}

// BenchmarkStart is what Start costs, beside the bare call of the runtime that
// it cannot do without.
func BenchmarkStart(b *testing.B) {
	for _, name := range hostRuntimes {
		r := findRuntime(b, name)
		b.Run(name+"/supervised", func(b *testing.B) {
			bed := newBed(b, r)
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				c := bed.create(fmt.Sprint("c", n), shell("sleep 1000"))
				b.StartTimer()
				c.start()
				b.StopTimer()
				if err := c.kill(unix.SIGKILL, false); err != nil {
					b.Fatal(err)
				}
				c.wait()
				c.mustDelete()
				b.StartTimer()
			}
		})
		b.Run(name+"/bare", func(b *testing.B) {
			bed := newBed(b, r)
			for n := 0; b.Loop(); n++ {
				b.StopTimer()
				c := bed.create(fmt.Sprint("c", n), shell("sleep 1000"))
				b.StartTimer()
				if err := exec.Command(r.path, "--root", bed.root(), "run", "--detach", "--bundle", c.bundle, c.id).Run(); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := exec.Command(r.path, "--root", bed.root(), "delete", "--force", c.id).Run(); err != nil {
					b.Fatal(err)
				}
				c.mustDelete()
				b.StartTimer()
			}
		})
	}
}

// BenchmarkExec is an exec from its start to its end, beside the bare call.
func BenchmarkExec(b *testing.B) {
	for _, name := range hostRuntimes {
		r := findRuntime(b, name)
		b.Run(name+"/supervised", func(b *testing.B) {
			c := newBed(b, r).run("c", shell("sleep 1000"))
			for b.Loop() {
				if got := c.exec("/bin/true"); got.status != 0 {
					b.Fatalf("%+v", got)
				}
			}
		})
		b.Run(name+"/bare", func(b *testing.B) {
			bed := newBed(b, r)
			c := bed.run("c", shell("sleep 1000"))
			for b.Loop() {
				if out, err := exec.Command(r.path, "--root", bed.root(), "exec", c.id, "/bin/true").CombinedOutput(); err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			}
		})
	}
}

// BenchmarkExitSeen is the time from the end of a process to the answer of Wait.
func BenchmarkExitSeen(b *testing.B) {
	bed := newBed(b, findRuntime(b, "crun"))
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		c := bed.run(fmt.Sprint("c", n), shell("sleep 1000"))
		if err := c.kill(unix.SIGKILL, false); err != nil {
			b.Fatal(err)
		}
		for c.alive() {
		}
		b.StartTimer()
		c.wait()
		b.StopTimer()
		c.mustDelete()
		b.StartTimer()
	}
}
