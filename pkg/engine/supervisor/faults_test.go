package supervisor_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// scripted returns a runtime that runs a shell script before the real runtime, whose path is $real.
// $verb is the subcommand, $last the last argument, and $pidfile the value of --pid-file.
func scripted(t testing.TB, real ociRuntime, script string) ociRuntime {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runtime")
	text := fmt.Sprintf(`#!/bin/sh
real=%s
for a in "$@"; do
	case $a in run|exec|delete|kill|state|pause|resume|checkpoint) [ "$verb" ] || verb=$a;; esac
	[ "$last" = --pid-file ] && pidfile=$a
	last=$a
done
%s
exec $real "$@"
`, real.path, script)
	test.Must(t, os.WriteFile(path, []byte(text), 0o755))
	real.path = path
	return real
}

// nothingLeft checks that a failed start left no process, runtime state or open output, and deletes
// the container.
func (c *container) nothingLeft() {
	c.Helper()
	for _, dir := range []string{"pids", "memory"} {
		procs, err := os.ReadFile("/sys/fs/cgroup/" + dir + c.cgroup + "/" + c.id + "/cgroup.procs")
		if err == nil && len(procs) > 0 {
			c.Errorf("processes are left: %q", procs)
		}
	}
	test.ErrorIs(c, test.Err(os.Stat(filepath.Join(c.root(), c.id))), os.ErrNotExist, "the runtime's state of the container")
	if exit := c.wait(); exit.Status != 128 || exit.Unknown {
		c.Errorf("the exit is %+v, want status 128", exit)
	}
	// The read reaches the end only if no process holds the output open.
	test.Must(c, c.keepOut.SetReadDeadline(time.Now().Add(time.Minute)))
	if n, err := c.keepOut.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		c.Errorf("the output is still held open, or not empty: read %d bytes, %v", n, err)
	}
	c.mustDelete()
}

// If runsc run is killed before it has recorded the container, runsc delete does not find the
// sandbox, which is in a session of its own. The supervisor must kill the sandbox nevertheless.
func TestKilledStartLeavesNoSandbox(t *testing.T) {
	begun := filepath.Join(t.TempDir(), "begun")
	b := newBed(t, scripted(t, findRuntime(t, "runsc"), `[ $verb = run ] && { setsid sh -c "echo > `+begun+`; sleep 1000; true" sandbox "$@" & exec sleep 1000; }`))
	c := b.create("c", shell("true"))
	done := make(chan error, 1)
	go func() { done <- c.tryStart() }()
	test.Eventually(t, "the sandbox runs", func() bool { _, err := os.Stat(begun); return err == nil })
	test.Must(t, c.kill(unix.SIGKILL, false))
	test.Fails(t, <-done, "the killed start succeeded")
	if left := commandLines(t, c.bundle, "sandbox"); len(left) > 0 {
		t.Errorf("processes are left: %q", left)
	}
	c.mustDelete()
}

func TestStartsThatFail(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		config       containerConfig
		timeout      int64 // ms
		want         string
		class        func(error) bool
	}{
		{name: "error in the runtime's log", script: `[ $verb = run ] && real="$real --debug"`,
			config: containerConfig{args: []string{"/no/such/program"}}, want: "no such file or directory"},
		{name: "error on stderr only", script: `[ $verb = run ] && { echo "no luck today" >&2; exit 3; }`, want: "no luck today"},
		{name: "exit without a message", script: `[ $verb = run ] && exit 4`, want: "exited with status 4"},
		{name: "runtime is killed", script: `[ $verb = run ] && kill -9 $$`, want: "killed by signal 9"},
		{name: "runtime hangs", script: `[ $verb = run ] && exec sleep 1000`, timeout: 300, class: isTimeout},
		{name: "runtime hangs with children", script: `[ $verb = run ] && { sleep 1000 & sleep 1000; }`, timeout: 300, class: isTimeout},
		{name: "runtime starts the container and hangs", script: `[ $verb = run ] && { $real "$@"; exec sleep 1000; }`, timeout: 700, class: isTimeout},
		{name: "runtime starts the container and fails", script: `[ $verb = run ] && { $real "$@"; exit 5; }`, want: "exited with status 5"},
		{name: "missing pid file", script: `[ $verb = run ] && { $real "$@"; rm -f $pidfile; exit 0; }`, want: "the process's PID cannot be read"},
		{name: "no number in the pid file", script: `[ $verb = run ] && { $real "$@"; echo pid > $pidfile; exit 0; }`, want: "is not the PID of a container"},
		{name: "pid that does not exist", script: `[ $verb = run ] && { $real "$@"; echo 4194303 > $pidfile; exit 0; }`, want: "does not exist"},
		{name: "pid of the supervisor", script: `[ $verb = run ] && { $real "$@"; echo $PPID > $pidfile; exit 0; }`, want: "is not a child of this supervisor"},
		{name: "pid 1", script: `[ $verb = run ] && { $real "$@"; echo 1 > $pidfile; exit 0; }`, want: "is not the PID of a container"},
		{name: "success without a container", script: `[ $verb = run ] && exit 0`, want: "the process's PID cannot be read"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, scripted(t, findRuntime(t, "runc"), tt.script))
			if tt.config.args == nil {
				tt.config = shell("sleep 1000")
			}
			tt.config.options = func(o *supervisorv1.TaskOptions) {
				if tt.timeout > 0 {
					o.CallTimeoutMs = tt.timeout
				}
			}
			c := b.create("c", tt.config)
			begin := time.Now()
			err := c.tryStart()
			switch {
			case err == nil:
				t.Fatal("the failing start succeeded")
			case tt.class != nil && !tt.class(err), !strings.Contains(err.Error(), tt.want), len(err.Error()) > 1024:
				t.Errorf("the start returns %v, want %q", err, tt.want)
			}
			if took := time.Since(begin); took > 20*time.Second {
				t.Errorf("the failing start took %v", took)
			}
			c.nothingLeft()
			if b.cmd.ProcessState != nil {
				t.Error("the supervisor has exited")
			}
		})
	}
}

// TestSocketOfASandboxThatWasKilled: runsc's delete leaves the socket of a sandbox that was killed
// while it started. The supervisor must remove it, or each retry of the kubelet would add a socket.
func TestSocketOfASandboxThatWasKilled(t *testing.T) {
	b := newBed(t, scripted(t, findRuntime(t, "runsc"), `[ "$verb" = run ] && { mkdir -p "$2"; : >"$2/runsc-$last.sock"; kill -9 $$; }`))
	c := b.create("c", shell("sleep 1000"))
	test.Says(t, c.tryStart(), "killed by signal 9")
	test.ErrorIs(t, test.Err(os.Stat(filepath.Join(c.root(), "runsc-c.sock"))), os.ErrNotExist, "the socket of the killed sandbox")
	c.nothingLeft()
}

func isTimeout(err error) bool { return errdefs.IsDeadlineExceeded(err) }

// The runtime's program is removed between Create and Start, and is restored later.
func TestRuntimeVanishes(t *testing.T) {
	r := scripted(t, findRuntime(t, "runc"), "")
	b := newBed(t, r)
	first, second := b.create("first", shell("sleep 1000")), b.create("second", shell("exit 3"))
	running := b.run("running", shell("echo up; sleep 1000"))
	running.said("up")
	test.Must(t, os.Rename(r.path, r.path+".away"))
	test.Refused(t, first.tryStart(), errdefs.IsFailedPrecondition, r.path)
	test.Checkf(t, running.kill(unix.SIGKILL, false), "kill without the runtime's program")
	running.exits(137)
	running.mustDelete()
	test.Must(t, os.Rename(r.path+".away", r.path))
	first.nothingLeft()
	second.start()
	second.exits(3)
	second.mustDelete()
}

// A start that hangs ends when the container is killed.
func TestKillEndsAStartThatHangs(t *testing.T) {
	b := newBed(t, scripted(t, findRuntime(t, "runc"), `[ $verb = run ] && exec sleep 1000`))
	c := b.create("c", shell("true"))
	started := make(chan error, 1)
	go func() { started <- c.tryStart() }()
	test.Eventually(t, "the container is being started", func() bool {
		task, err := journal.ReadTask(b.dir, c.id)
		return err == nil && task.State == journal.TaskStarting
	})
	test.Eventually(t, "the container can be killed", func() bool { return c.kill(unix.SIGKILL, false) == nil })
	select {
	case err := <-started:
		test.Fails(t, err, "the killed start succeeded")
	case <-time.After(10 * time.Second):
		t.Fatal("the start still hangs after the kill")
	}
	c.nothingLeft()
}

// If a supervisor is killed during a start, its successor removes the container, whether the
// runtime had created it or not.
func TestStartThatItsSupervisorDidNotSurviveIsUndone(t *testing.T) {
	for name, script := range map[string]string{
		"before the container is created": `[ $verb = run ] && exec sleep 30`,
		"after the container was created": `[ $verb = run ] && { $real "$@"; touch $pidfile.created; exec sleep 30; }`,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, scripted(t, findRuntime(t, "runc"), script))
			c := b.create("c", shell("sleep 1000"))
			go func() { _ = c.tryStart() }() // the killed supervisor does not answer
			test.Eventually(t, "the container is being started", func() bool {
				task, err := journal.ReadTask(b.dir, c.id)
				return err == nil && task.State == journal.TaskStarting
			})
			if strings.Contains(script, "created") {
				test.Eventually(t, "the container is created", func() bool { return len(leftFiles(t, b, "pid.created")) > 0 })
			}
			b.kill9()
			b.serve()
			if exit := c.wait(); exit.Status != 255 || !exit.Unknown {
				t.Errorf("the exit is %+v, want status 255 and unknown", exit)
			}
			test.ErrorIs(t, test.Err(os.Stat(filepath.Join(b.root(), c.id))), os.ErrNotExist, "the runtime's state of the container")
			c.mustDelete()
		})
	}
}

// A container can be deleted even if its runtime can neither start nor delete it.
func TestRuntimeThatCanDoNothing(t *testing.T) {
	b := newBed(t, scripted(t, findRuntime(t, "runc"), `echo "it cannot be done" >&2; exit 1`))
	c := b.create("c", shell("sleep 1000"))
	if err := c.tryStart(); err == nil {
		t.Fatal("the failing start succeeded")
	}
	c.nothingLeft()
}

// A slow call of the runtime may outlive the supervisor that made the call. The call must not start
// the container after the successor has reported the container's exit.
func TestRuntimeThatOutlivesItsSupervisorStartsNothing(t *testing.T) {
	for _, name := range []string{"runc", "crun", "runsc"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := filepath.Join(t.TempDir(), "begun")
			b := newBed(t, scripted(t, findRuntime(t, name), `[ $verb = run ] && { touch `+begun+`; sleep 1; }`))
			c := b.create("c", shell("sleep 4321"))
			go func() { _ = c.tryStart() }() // the killed supervisor does not answer
			test.Eventually(t, "the runtime has begun", func() bool { _, err := os.Stat(begun); return err == nil })
			b.kill9()
			b.serve()
			if exit := c.wait(); exit.Status != 255 || !exit.Unknown {
				t.Errorf("the exit is %+v, want status 255 and unknown", exit)
			}
			if left := calledWith(t, b.dir); len(left) > 0 {
				t.Errorf("after the exit was reported there are the processes %q", left)
			}
			time.Sleep(2 * time.Second) // the runtime's call would have started the container by then
			test.ErrorIs(t, test.Err(os.Stat(filepath.Join(b.root(), c.id))), os.ErrNotExist, "the runtime's state of the container")
			if left := calledWith(t, b.dir); len(left) > 0 {
				t.Errorf("two seconds later there are the processes %q", left)
			}
			c.mustDelete()
		})
	}
}

// calledWith returns the command lines of a runtime's run --detach that contain a path.
func calledWith(t *testing.T, path string) []string {
	t.Helper()
	return commandLines(t, path, "run --detach")
}

// commandLines returns the command lines of all processes that contain both path and words.
func commandLines(t *testing.T, path, words string) (found []string) {
	t.Helper()
	files := test.Value(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	for _, file := range files {
		text, _ := os.ReadFile(file) // the process may have exited
		line := strings.ReplaceAll(string(text), "\x00", " ")
		if strings.Contains(line, path) && strings.Contains(line, words) {
			found = append(found, line)
		}
	}
	return found
}

// An exec that is killed while the runtime still starts it must not continue, not even in a kernel
// of the container's own, where its process is not visible on the host.
func TestKillOfAnExecThatIsBeingStarted(t *testing.T) {
	for _, name := range []string{"runc", "runsc"} {
		t.Run(name, func(t *testing.T) {
			begun := filepath.Join(t.TempDir(), "begun")
			b := newBed(t, scripted(t, findRuntime(t, name), `[ $verb = exec ] && { $real "$@"; code=$?; touch `+begun+`; sleep 1; exit $code; }`))
			c := b.run("c", shell("sleep 1000"))
			e := c.addExec(false, false, "/bin/sleep", "2002")
			started := make(chan error, 1)
			go func() { started <- e.start() }()
			test.Eventually(t, "the runtime has started the exec", func() bool { _, err := os.Stat(begun); return err == nil })
			test.Checkf(t, e.kill(unix.SIGKILL), "kill")
			if err := <-started; err == nil && name == "runc" {
				t.Error("the start of the killed exec succeeded")
			}
			e.wait()
			e.done(e.delete())
			test.Eventually(t, "nothing of the exec is left", func() bool { return len(c.pids()) == 1 })
		})
	}
}

// runsc waits at most ten seconds for an exec's process, then fails without a message, and leaves
// the process, which may still start on a busy node. Here the process gets its spec only after
// runsc has failed.
func TestExecThatItsRuntimeGaveUpOn(t *testing.T) {
	// The runtime reads the exec's spec first, and then its child reads the spec again.
	const readTwice = `[ $verb = exec ] && case "$*" in *--detach*)
	spec=${pidfile%%.pid}.json
	mv $spec $spec.whole && mkfifo $spec && cat $spec.whole > $spec &
	while [ ! -p $spec ]; do sleep 0.01; done
	$real "$@"; code=$?
	[ $code = 128 ] && [ ! -e $pidfile ] && touch %s
	%s
	exit $code;;
esac`
	for _, tt := range []struct {
		name, then string
		timeout    int64
		check      func(t *testing.T, c *container, e *execution, err error)
	}{
		{"process starts", `cat $spec.whole > $spec &`, 60_000, func(t *testing.T, _ *container, e *execution, err error) {
			test.Mustf(t, err, "start")
			if status, said := e.wait(), <-e.stdout; status != 5 || said != "done\n" {
				t.Errorf("the exec has status %d and output %q", status, said)
			}
		}},
		{"process fails", `echo nonsense > $spec &`, 60_000, func(t *testing.T, _ *container, _ *execution, err error) {
			test.Says(t, err, "parsing process spec")
		}},
		{"process hangs", ``, 15_000, func(t *testing.T, c *container, _ *execution, err error) {
			if !isTimeout(err) {
				t.Errorf("start: %v", err)
			}
			if left := commandLines(t, c.dir, "exec"); len(left) > 0 {
				t.Errorf("processes of the exec are left: %q", left)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			gaveUp := filepath.Join(t.TempDir(), "gave-up")
			b := newBed(t, scripted(t, findRuntime(t, "runsc"), fmt.Sprintf(readTwice, gaveUp, tt.then)))
			cfg := shell("sleep 1000")
			cfg.options = func(o *supervisorv1.TaskOptions) { o.CallTimeoutMs = tt.timeout }
			c := b.run("c", cfg)
			e := c.addExec(false, false, "/bin/sh", "-c", "echo done; exit 5")
			err := e.start()
			if _, missing := os.Stat(gaveUp); missing != nil {
				t.Fatalf("the runtime has not failed as expected; start: %v", err)
			}
			tt.check(t, c, e, err)
			e.wait()
			e.done(e.delete())
		})
	}
}

func TestExecFaults(t *testing.T) {
	for _, tt := range []struct {
		name, script, want, stderr string
		class                      func(error) bool
	}{
		{name: "runtime hangs", script: `[ $verb = exec ] && exec sleep 1000`, class: isTimeout},
		{name: "runtime starts the process and hangs", script: `[ $verb = exec ] && { $real "$@"; exec sleep 1000; }`, class: isTimeout},
		{name: "runtime fails", script: `[ $verb = exec ] && { echo "no exec for you" >&2; exit 3; }`, want: "exited with status 3", stderr: "no exec for you\n"},
		{name: "missing pid file", script: `[ $verb = exec ] && { $real "$@"; rm -f $pidfile; exit 0; }`, want: "the process's PID cannot be read"},
		{name: "pid that does not exist", script: `[ $verb = exec ] && { $real "$@"; echo 4194303 > $pidfile; exit 0; }`, want: "does not exist"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, scripted(t, findRuntime(t, "runc"), tt.script))
			cfg := shell("sleep 1000")
			cfg.options = func(o *supervisorv1.TaskOptions) { o.CallTimeoutMs = 700 }
			c := b.run("c", cfg)
			e := c.addExec(false, false, "/bin/sleep", "2001")
			err := e.start()
			if err == nil || tt.class != nil && !tt.class(err) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("start: %v", err)
			}
			test.Equal(t, "status", e.wait(), 255)
			e.done(e.delete())
			if !c.alive() {
				t.Error("the container exited")
			}
			select {
			case said := <-e.stderr:
				test.Equal(t, "stderr", said, tt.stderr)
			case <-time.After(time.Minute):
				t.Error("the exec's stderr does not end")
			}
			test.Eventually(t, "nothing of the exec is left", func() bool { return len(c.pids()) == 1 })
		})
	}
}

func TestRuntimeThatWasUninstalled(t *testing.T) {
	for _, name := range []string{"runc", "crun", "runsc"} {
		t.Run(name, func(t *testing.T) {
			r := scripted(t, findRuntime(t, name), "")
			b := newBed(t, r)
			c := b.run("c", shell("sleep 1000"))
			ended := b.run("ended", shell("exit 3"))
			ended.wait()
			if kept, _ := filepath.Glob(b.root() + "/c*"); len(kept) == 0 {
				t.Fatal("the runtime has no state in its directory: the test would check nothing")
			}
			test.Must(t, os.Remove(r.path))
			test.Must(t, unix.Kill(c.pid, unix.SIGKILL))
			c.wait()
			c.mustDelete()
			ended.mustDelete()
			left, err := filepath.Glob(b.root() + "/*")
			// gVisor keeps one network namespace for the gofers of all its pods.
			left = slices.DeleteFunc(left, func(path string) bool { return filepath.Base(path) == "null-netns" })
			if err != nil || len(left) > 0 {
				t.Errorf("left in the runtime's directory: %v, %v", left, err)
			}
		})
	}
}
