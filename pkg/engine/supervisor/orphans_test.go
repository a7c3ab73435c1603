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

// While a start hangs, only orphans that may belong to that start are not reaped. Others must be
// reaped, because runsc's delete waits for some of them.
func TestOrphansDoNotWaitForAStartThatHangs(t *testing.T) {
	b := newBed(t, scripted(t, findRuntime(t, "runc"), `[ $verb = run ] && [ $last = hung ] && exec sleep 1000`))
	old := b.run("old", inHostPIDs("sleep 996 & sleep 996 & echo ready; sleep 996"))
	old.said("ready")
	pids, err := old.task.Pids(old.ctx(), &taskAPI.PidsRequest{ID: old.id})
	if err != nil || len(pids.Processes) < 3 {
		t.Fatalf("pids: %v, %v", pids, err)
	}
	time.Sleep(50 * time.Millisecond) // start times of processes have a resolution of 10 ms
	hung := b.create("hung", shell("true"))
	started := make(chan error, 1)
	go func() { started <- hung.tryStart() }()
	starting := func() bool {
		task, err := journal.ReadTask(b.dir, hung.id)
		return err == nil && task.State == journal.TaskStarting
	}
	test.Eventually(t, "the hung container is being started", starting)

	// This orphan is younger than the start and is not reaped yet. Orphans that exit after this
	// one are reaped.
	young := strings.TrimSpace(old.exec("sh", "-c", "sleep 0.1 >/dev/null 2>&1 & echo $!").stdout)
	test.Eventually(t, "the young orphan has exited", func() bool {
		state, err := os.ReadFile("/proc/" + young + "/stat")
		return err != nil || strings.Contains(string(state), ") Z ")
	})
	test.Must(t, old.kill(unix.SIGKILL, false))
	old.wait()
	for _, p := range pids.Processes {
		test.Eventually(t, "process "+strconv.Itoa(int(p.Pid))+" is reaped", func() bool { return unix.Kill(int(p.Pid), 0) != nil })
	}
	if !starting() {
		t.Error("the start does not hang any more: the test checked nothing")
	}
	old.mustDelete()
	test.Eventually(t, "the hung container can be killed", func() bool { return hung.kill(unix.SIGKILL, false) == nil })
	test.Fails(t, <-started, "the killed start succeeded")
	hung.nothingLeft()
	pid := test.Value(strconv.Atoi(young))(t)
	test.Eventually(t, "the young orphan is reaped", func() bool { return unix.Kill(pid, 0) != nil })
}

// A container starts and exits while another start hangs. The helper process that the container's
// runtime left must be reaped, because runsc's delete waits for such a process, its gofer.
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
	test.Eventually(t, "the hung container is being started", starting)
	quick := b.run("quick", shell("exit 3"))
	if w := quick.wait(); w.Status != 3 {
		t.Errorf("the container exited with %d, want 3", w.Status)
	}
	quick.mustDelete()
	if !starting() {
		t.Error("the start does not hang any more: the test checked nothing")
	}
	test.Eventually(t, "the hung container can be killed", func() bool { return hung.kill(unix.SIGKILL, false) == nil })
	test.Fails(t, <-started, "the killed start succeeded")
	hung.nothingLeft()
}

// Orphans of a failed start are reaped before the runtime's delete is called. runsc's delete waits
// for them, and would keep its state if it were killed while it waits.
func TestFailedStartReapsBeforeItDeletes(t *testing.T) {
	left, late := t.TempDir()+"/left", t.TempDir()+"/late"
	b := newBed(t, scripted(t, findRuntime(t, "runc"), `
if [ $verb = run ] && [ $last = bad ]; then sleep 0.1 >/dev/null 2>&1 & echo $! > `+left+`; exit 1; fi
if [ $verb = delete ] && [ $last = bad ]; then
  n=0; while kill -0 $(cat `+left+`) 2>/dev/null; do n=$((n+1)); [ $n = 300 ] && touch `+late+` && break; sleep 0.02; done
fi`))
	c := b.create("bad", shell("true"))
	test.Fails(t, c.tryStart(), "the failing start succeeded")
	test.Mustf(t, test.Err(os.Stat(left)), "the failed start left no orphan")
	test.Fails(t, test.Err(os.Stat(late)), "the orphan was not reaped during the runtime's delete")
}
