package supervisor_test

import (
	"fmt"
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
			t.Errorf("the start of a missing program returns %v", err)
		}
		test.Equal(t, "status", e.wait(), 255)
		test.Checkf(t, test.Err(e.delete()), "delete")
		if left := leftFiles(t, b, "exec-*"); len(left) > 0 {
			t.Errorf("files of the exec are left: %v", left)
		}
	})
}

// leftFiles returns the files of tasks in the supervisor's directory that match pattern.
func leftFiles(t testing.TB, b *bed, pattern string) []string {
	t.Helper()
	return test.Value(filepath.Glob(filepath.Join(b.dir, "tasks", "*", pattern)))(t)
}

// A kill of an exec kills all of its processes: also its children, and processes that left the
// exec's session but still hold its output open.
func TestKillOfAnExecEndsAllOfIt(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		for script, processes := range map[string]int{
			"sleep 2001; true": 2,
			"sleep 2002 & (sleep 2003 & sleep 2004; true) & wait": 5,
			"setsid sh -c 'sleep 2005; true' & sleep 2006; true":  4,
			"trap '' TERM INT HUP; sleep 2007; true":              2,
		} {
			before := len(c.pids())
			e := c.addExec(false, false, "/bin/sh", "-c", script)
			test.Must(t, e.start())
			test.Eventually(t, script+" has its children", func() bool { return len(c.pids()) == before+processes })
			test.Mustf(t, e.kill(unix.SIGKILL), "kill %s", script)
			test.Equal(t, fmt.Sprintf("%s: status", script), e.wait(), 137)
			test.Eventually(t, script+" left nothing", func() bool { return len(c.pids()) == before })
			select {
			case <-e.stdout:
			case <-time.After(time.Minute):
				t.Errorf("%s: the output does not end after the kill", script)
			}
			e.done(e.delete())
		}
		if !c.alive() {
			t.Error("the container was killed with its execs")
		}
	})
}

// An exited exec may leave a process that holds its output open. A kill of the exec then kills that
// process, so that the output ends.
func TestKillAfterTheEndOfAnExecEndsWhoHoldsItsOutput(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		e := c.addExec(false, false, "/bin/sh", "-c", "setsid sleep 2001 & echo left; exit 4")
		test.Must(t, e.start())
		test.Equal(t, "status", e.wait(), 4)
		select {
		case text := <-e.stdout:
			t.Fatalf("the exec's output ended before the kill, with %q", text)
		case <-time.After(100 * time.Millisecond):
		}
		test.Checkf(t, e.kill(unix.SIGKILL), "kill")
		test.Equal(t, "stdout", <-e.stdout, "left\n")
		test.Is(t, e.kill(unix.SIGKILL), errdefs.IsNotFound, "a second kill, when no process is left")
	})
}

func TestExecSignals(t *testing.T) {
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		e := c.addExec(false, false, "/bin/sh", "-c", "trap 'exit 8' TERM; touch /tmp/trapped; while :; do sleep 0.02; done")
		test.Is(t, e.kill(unix.SIGTERM), errdefs.IsFailedPrecondition, "kill of an exec that was not started")
		test.Must(t, e.start())
		test.Is(t, e.start(), errdefs.IsFailedPrecondition, "a second start")
		test.Is(t, test.Err(e.delete()), errdefs.IsFailedPrecondition, "delete of a running exec")
		c.untilThere("/tmp/trapped")
		test.Must(t, e.kill(unix.SIGTERM))
		test.Equal(t, "status", e.wait(), 8)
		test.Is(t, e.kill(unix.SIGTERM), errdefs.IsNotFound, "a signal after the exit")
		e.done(e.delete())
		test.Is(t, test.Err(e.delete()), errdefs.IsNotFound, "a second delete")
	})
}

func TestExecNeedsARunningContainer(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", shell("sleep 1000"))
	e := c.addExec(false, false, "/bin/true")
	c.done(c.task.Pause(c.ctx(), &taskAPI.PauseRequest{ID: c.id}))
	test.Is(t, e.start(), errdefs.IsFailedPrecondition, "start in a paused container")
	test.Must(t, c.kill(unix.SIGKILL, false))
	c.wait()
	test.Is(t, e.start(), errdefs.IsFailedPrecondition, "start in an exited container")
	test.Checkf(t, test.Err(e.delete()), "delete an exec that was never started")
	_, err := c.task.Exec(c.ctx(), &taskAPI.ExecProcessRequest{ID: c.id, ExecID: "late", Spec: anyJSON(t, map[string]any{"args": []string{"true"}})})
	test.Is(t, errgrpc.ToNative(err), errdefs.IsFailedPrecondition, "add an exec to an exited container")
}

func TestExecRefusesWhatIsNoProcess(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", shell("sleep 1000"))
	for what, r := range map[string]*taskAPI.ExecProcessRequest{
		"no args":                 {ExecID: "a", Spec: anyJSON(t, map[string]any{"cwd": "/"})},
		"spec is a string":        {ExecID: "a", Spec: anyJSON(t, "text")},
		"no spec":                 {ExecID: "a"},
		"option as id":            {ExecID: "--root", Spec: anyJSON(t, map[string]any{"args": []string{"true"}})},
		"path as id":              {ExecID: "../a", Spec: anyJSON(t, map[string]any{"args": []string{"true"}})},
		"relative path of a FIFO": {ExecID: "a", Stdout: "out", Spec: anyJSON(t, map[string]any{"args": []string{"true"}})},
	} {
		r.ID = c.id
		_, err := c.task.Exec(c.ctx(), r)
		test.Is(t, errgrpc.ToNative(err), errdefs.IsInvalidArgument, "%s", what)
	}
}
