package supervisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"
)

func TestExecExitStatus(t *testing.T) {
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		for _, tt := range []struct {
			script string
			want   execResult
		}{
			{"echo out; echo err >&2", execResult{0, "out\n", "err\n"}},
			{"exit 3", execResult{3, "", ""}},
			{"exit 255", execResult{255, "", ""}},
			{"printf 'no end'; kill -9 $$", execResult{137, "no end", ""}},
			{"head -c 300000 /dev/zero | tr '\\0' x", execResult{0, strings.Repeat("x", 300_000), ""}},
		} {
			if got := c.exec("/bin/sh", "-c", tt.script); got != tt.want {
				t.Errorf("%s: status %d, %d bytes on stdout, %q on stderr", tt.script, got.status, len(got.stdout), got.stderr)
			}
		}
		if !c.alive() {
			t.Error("the container did not survive its execs")
		}
	})
}

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
	left, err := filepath.Glob(filepath.Join(b.dir, "tasks", "*", pattern))
	if err != nil {
		t.Fatal(err)
	}
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
			if err := e.start(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it has children", func() bool { return len(c.pids()) > before+1 })
			time.Sleep(20 * time.Millisecond)
			if err := e.kill(unix.SIGKILL); err != nil {
				t.Fatalf("%s: %v", script, err)
			}
			if status := e.wait(); status != 137 {
				t.Errorf("%s: status %d", script, status)
			}
			eventually(t, script+" left nothing", func() bool { return len(c.pids()) == before })
			select {
			case <-e.stdout:
			case <-time.After(time.Minute):
				t.Errorf("%s: its output does not end", script)
			}
			if _, err := e.delete(); err != nil {
				t.Error(err)
			}
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
		if err := e.start(); err != nil {
			t.Fatal(err)
		}
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
		if err := e.start(); err != nil {
			t.Fatal(err)
		}
		if err := e.start(); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("a second start: %v", err)
		}
		if _, err := e.delete(); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("deleting what runs: %v", err)
		}
		c.untilThere("/tmp/trapped")
		if err := e.kill(unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if status := e.wait(); status != 8 {
			t.Errorf("status %d", status)
		}
		if err := e.kill(unix.SIGTERM); !errdefs.IsNotFound(err) {
			t.Errorf("a signal after the end: %v", err)
		}
		if _, err := e.delete(); err != nil {
			t.Error(err)
		}
		if _, err := e.delete(); !errdefs.IsNotFound(err) {
			t.Errorf("a second delete: %v", err)
		}
	})
}

func TestExecReadsItsInputToTheEnd(t *testing.T) {
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		e := c.addExec(false, true, "/bin/sh", "-c", "cat; exit 5")
		if err := e.start(); err != nil {
			t.Fatal(err)
		}
		in, err := os.OpenFile(e.stdin, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		sent := strings.Repeat("input ", 50_000)
		if _, err := in.WriteString(sent); err != nil {
			t.Fatal(err)
		}
		in.Close()
		// Held open until CloseIO.
		time.Sleep(50 * time.Millisecond)
		s, err := e.task.State(e.ctx(), &taskAPI.StateRequest{ID: c.id, ExecID: e.id})
		if err != nil || s.Status != tasktypes.Status_RUNNING {
			t.Errorf("before CloseIO: %v, %v", s, err)
		}
		if _, err := e.task.CloseIO(e.ctx(), &taskAPI.CloseIORequest{ID: c.id, ExecID: e.id, Stdin: true}); err != nil {
			t.Fatal(err)
		}
		if status := e.wait(); status != 5 {
			t.Errorf("status %d", status)
		}
		if got := <-e.stdout; got != sent {
			t.Errorf("%d of %d bytes came back", len(got), len(sent))
		}
	})
}

func TestExecWithATerminal(t *testing.T) {
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		e := c.addExec(true, true, "/bin/sh", "-c", "stty -echo; touch /tmp/quiet; read x; stty size; test -t 0 && test -t 1 && echo $x; exit 6")
		if err := e.start(); err != nil {
			t.Fatal(err)
		}
		resize := &taskAPI.ResizePtyRequest{ID: c.id, ExecID: e.id, Width: 132, Height: 43}
		if _, err := e.task.ResizePty(e.ctx(), resize); err != nil {
			t.Error(err)
		}
		in, err := os.OpenFile(e.stdin, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		c.untilThere("/tmp/quiet") // it echoes no more
		if _, err := in.WriteString("typed\n"); err != nil {
			t.Fatal(err)
		}
		if status := e.wait(); status != 6 {
			t.Errorf("status %d", status)
		}
		if got := <-e.stdout; got != "43 132\r\ntyped\r\n" {
			t.Errorf("the terminal said %q", got)
		}
	})
}

func TestExecNeedsARunningContainer(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", shell("sleep 1000"))
	e := c.addExec(false, false, "/bin/true")
	if _, err := c.task.Pause(c.ctx(), &taskAPI.PauseRequest{ID: c.id}); err != nil {
		t.Fatal(err)
	}
	if err := e.start(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("in a paused container: %v", err)
	}
	if err := c.kill(unix.SIGKILL, false); err != nil {
		t.Fatal(err)
	}
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
