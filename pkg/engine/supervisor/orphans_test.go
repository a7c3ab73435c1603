package supervisor_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// A start that hangs keeps the orphans of others from being reaped only if they
// may be its own: runsc waits for some, and deletes nothing meanwhile.
func TestOrphansDoNotWaitForAStartThatHangs(t *testing.T) {
	b := newBed(t, scripted(t, findRuntime(t, "runc"), `[ $verb = run ] && [ $last = hung ] && exec sleep 1000`))
	old := b.run("old", inHostPIDs("sleep 996 & sleep 996 & echo ready; sleep 996"))
	old.said("ready")
	pids, err := old.task.Pids(old.ctx(), &taskAPI.PidsRequest{ID: old.id})
	if err != nil || len(pids.Processes) < 3 {
		t.Fatalf("pids: %v, %v", pids, err)
	}
	time.Sleep(50 * time.Millisecond) // the kernel counts starts in steps of 10 ms
	hung := b.create("hung", shell("true"))
	started := make(chan error, 1)
	go func() { started <- hung.tryStart() }()
	starting := func() bool {
		task, err := journal.ReadTask(b.dir, hung.id)
		return err == nil && task.State == journal.TaskStarting
	}
	test.Eventually(t, "the other one is being started", starting)

	// This orphan is younger than the start. It waits, and others behind it do not.
	young := strings.TrimSpace(old.exec("sh", "-c", "sleep 0.1 >/dev/null 2>&1 & echo $!").stdout)
	test.Eventually(t, "the young orphan has ended", func() bool {
		state, err := os.ReadFile("/proc/" + young + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ")
	})
	test.Must(t, old.kill(unix.SIGKILL, false))
	old.wait()
	for _, p := range pids.Processes {
		test.Eventually(t, "process "+strconv.Itoa(int(p.Pid))+" is reaped", func() bool { return unix.Kill(int(p.Pid), 0) != nil })
	}
	if !starting() {
		t.Error("the start has ended meanwhile: nothing was tested")
	}
	old.mustDelete()
	test.Eventually(t, "the start is given up", func() bool { return hung.kill(unix.SIGKILL, false) == nil })
	test.Fails(t, <-started, "it started")
	hung.nothingLeft()
	pid := test.Value(strconv.Atoi(young))(t)
	test.Eventually(t, "the young orphan is reaped", func() bool { return unix.Kill(pid, 0) != nil })
}

// The helper that a runtime leaves of a container that was started and has ended while
// the start of another one hangs is reaped: runsc's delete waits for its gofer.
func TestHelpersDoNotWaitForAStartThatHangs(t *testing.T) {
	helper := t.TempDir() + "/helper"
	b := newBed(t, scripted(t, findRuntime(t, "runc"), `
[ $verb = run ] && [ $last = hung ] && exec sleep 1000
[ $verb = run ] && [ $last = quick ] && { sh -c 'sleep "$2"; :' gofer "--bundle=/x/$last" 1 >/dev/null 2>&1 & echo $! > `+helper+`; }
if [ $verb = delete ] && [ $last = quick ]; then
  n=0; while kill -0 $(cat `+helper+`) 2>/dev/null; do n=$((n+1)); [ $n = 250 ] && echo "the gofer is still running" >&2 && exit 1; sleep 0.02; done
fi`))
	hung := b.create("hung", shell("true"))
	started := make(chan error, 1)
	go func() { started <- hung.tryStart() }()
	starting := func() bool {
		task, err := journal.ReadTask(b.dir, hung.id)
		return err == nil && task.State == journal.TaskStarting
	}
	test.Eventually(t, "the other one is being started", starting)
	quick := b.run("quick", shell("exit 3"))
	if w := quick.wait(); w.Status != 3 {
		t.Errorf("it ended with %d", w.Status)
	}
	quick.mustDelete()
	if !starting() {
		t.Error("the start has ended meanwhile: nothing was tested")
	}
	test.Eventually(t, "the start is given up", func() bool { return hung.kill(unix.SIGKILL, false) == nil })
	test.Fails(t, <-started, "it started")
	hung.nothingLeft()
}

// What a failed start leaves is reaped before the runtime is told to delete:
// runsc waits for that, and would keep its state when it is killed waiting.
func TestFailedStartReapsBeforeItDeletes(t *testing.T) {
	left, late := t.TempDir()+"/left", t.TempDir()+"/late"
	b := newBed(t, scripted(t, findRuntime(t, "runc"), `
if [ $verb = run ] && [ $last = bad ]; then sleep 0.1 >/dev/null 2>&1 & echo $! > `+left+`; exit 1; fi
if [ $verb = delete ] && [ $last = bad ]; then
  n=0; while kill -0 $(cat `+left+`) 2>/dev/null; do n=$((n+1)); [ $n = 300 ] && touch `+late+` && break; sleep 0.02; done
fi`))
	c := b.create("bad", shell("true"))
	test.Fails(t, c.tryStart(), "it started")
	test.Mustf(t, test.Err(os.Stat(left)), "nothing was left")
	test.Fails(t, test.Err(os.Stat(late)), "the orphan was there as long as the runtime's delete")
}
