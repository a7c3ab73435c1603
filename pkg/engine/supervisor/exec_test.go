package supervisor_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestExecThatCannotBeStarted(t *testing.T) {
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		e := c.addExec(false, false, "/no/such/program")
		err := e.start()
		if err == nil || !strings.Contains(err.Error(), "no such file") && !strings.Contains(err.Error(), "not found") &&
			!strings.Contains(err.Error(), "No such file") {
			t.Errorf("start: %v", err)
		}
		if status := e.wait(); status != 255 {
			t.Errorf("status %d", status)
		}
		if _, err := e.delete(); err != nil {
			t.Errorf("delete: %v", err)
		}
		if left := leftFiles(t, b, "exec-*"); len(left) > 0 {
			t.Errorf("files of the exec are left: %v", left)
		}
	})
}

// leftFiles are files of tasks that are left in the supervisor's directory.
func leftFiles(t testing.TB, b *bed, pattern string) []string {
	t.Helper()
	left := value(filepath.Glob(filepath.Join(b.dir, "tasks", "*", pattern)))(t)
	return left
}

// A caller whose time is over kills the exec; nothing of it may stay, neither
// children nor what left its session and still holds its output.
func TestKillOfAnExecEndsAllOfIt(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		for _, script := range []string{
			"sleep 2001; true",
			"sleep 2002 & (sleep 2003 & sleep 2004; true) & wait",
			"setsid sh -c 'sleep 2005; true' & sleep 2006; true",
			"trap '' TERM INT HUP; sleep 2007; true",
		} {
			before := len(c.pids())
			e := c.addExec(false, false, "/bin/sh", "-c", script)
			must(t, e.start())
			eventually(t, "it has children", func() bool { return len(c.pids()) > before+1 })
			time.Sleep(20 * time.Millisecond)
			test.Mustf(t, e.kill(unix.SIGKILL), "%s", script)
			if status := e.wait(); status != 137 {
				t.Errorf("%s: status %d", script, status)
			}
			eventually(t, script+" left nothing", func() bool { return len(c.pids()) == before })
			select {
			case <-e.stdout:
			case <-time.After(time.Minute):
				t.Errorf("%s: its output does not end", script)
			}
			e.done(e.delete())
		}
		if !c.alive() {
			t.Error("the container was killed with its execs")
		}
	})
}

// An exec that has ended may leave a process that holds its output open, which
// its caller waits for in vain until it kills that too.
func TestKillAfterTheEndOfAnExecEndsWhoHoldsItsOutput(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		e := c.addExec(false, false, "/bin/sh", "-c", "setsid sleep 2001 & echo left; exit 4")
		must(t, e.start())
		if status := e.wait(); status != 4 {
			t.Errorf("status %d", status)
		}
		select {
		case text := <-e.stdout:
			t.Fatalf("its output has ended, with %q", text)
		case <-time.After(100 * time.Millisecond):
		}
		if err := e.kill(unix.SIGKILL); err != nil {
			t.Errorf("kill: %v", err)
		}
		if text := <-e.stdout; text != "left\n" {
			t.Errorf("stdout %q", text)
		}
		if err := e.kill(unix.SIGKILL); !errdefs.IsNotFound(err) {
			t.Errorf("with nothing left to kill: %v", err)
		}
	})
}

func TestExecSignals(t *testing.T) {
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		e := c.addExec(false, false, "/bin/sh", "-c", "trap 'exit 8' TERM; touch /tmp/trapped; while :; do sleep 0.02; done")
		if err := e.kill(unix.SIGTERM); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("killing what was not started: %v", err)
		}
		must(t, e.start())
		if err := e.start(); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("a second start: %v", err)
		}
		if _, err := e.delete(); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("deleting what runs: %v", err)
		}
		c.untilThere("/tmp/trapped")
		must(t, e.kill(unix.SIGTERM))
		if status := e.wait(); status != 8 {
			t.Errorf("status %d", status)
		}
		if err := e.kill(unix.SIGTERM); !errdefs.IsNotFound(err) {
			t.Errorf("a signal after the end: %v", err)
		}
		e.done(e.delete())
		if _, err := e.delete(); !errdefs.IsNotFound(err) {
			t.Errorf("a second delete: %v", err)
		}
	})
}

func TestExecNeedsARunningContainer(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", shell("sleep 1000"))
	e := c.addExec(false, false, "/bin/true")
	c.done(c.task.Pause(c.ctx(), &taskAPI.PauseRequest{ID: c.id}))
	if err := e.start(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("in a paused container: %v", err)
	}
	must(t, c.kill(unix.SIGKILL, false))
	c.wait()
	if err := e.start(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("in an ended container: %v", err)
	}
	if _, err := e.delete(); err != nil {
		t.Errorf("deleting what was never started: %v", err)
	}
	_, err := c.task.Exec(c.ctx(), &taskAPI.ExecProcessRequest{ID: c.id, ExecID: "late", Spec: anyJSON(t, map[string]any{"args": []string{"true"}})})
	if err := errgrpc.ToNative(err); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("an exec after the end: %v", err)
	}
}

func TestExecRefusesWhatIsNoProcess(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", shell("sleep 1000"))
	for what, r := range map[string]*taskAPI.ExecProcessRequest{
		"no args":         {ExecID: "a", Spec: anyJSON(t, map[string]any{"cwd": "/"})},
		"no object":       {ExecID: "a", Spec: anyJSON(t, "text")},
		"no spec":         {ExecID: "a"},
		"an option as id": {ExecID: "--root", Spec: anyJSON(t, map[string]any{"args": []string{"true"}})},
		"a path as id":    {ExecID: "../a", Spec: anyJSON(t, map[string]any{"args": []string{"true"}})},
		"a relative FIFO": {ExecID: "a", Stdout: "out", Spec: anyJSON(t, map[string]any{"args": []string{"true"}})},
	} {
		r.ID = c.id
		_, err := c.task.Exec(c.ctx(), r)
		if err := errgrpc.ToNative(err); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
