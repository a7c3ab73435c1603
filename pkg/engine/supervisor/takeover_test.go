package supervisor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// counting is a container that writes numbered lines until SIGTERM, and then writes their number
// and exits with status.
func counting(status int, pause string) containerConfig {
	return shell(fmt.Sprintf(`trap 'printf "total %%08d end\n" $i; exit %d' TERM
i=0
while :; do i=$((i+1)); printf "line %%08d end\n" $i; %s; done`, status, pause))
}

const (
	atFullSpeed = ":"
	slowly      = "usleep 2000"
	// inHand is the number of numbered lines that a supervisor may have read and not yet written
	// when it is killed: those of one chunk, with a part of a line at each end.
	inHand = 32*1024/len("line 00000000 end\n") + 2
)

// counted is the number of lines that were written, are missing in the log, and are cut.
type counted struct {
	total, lost, damaged int
}

var numbered = regexp.MustCompile(`^(line|total) (\d{8}) end$`)

func (c *container) counted() counted {
	c.Helper()
	var r counted
	last, seen := 0, 0
	for _, l := range c.lines() {
		m := numbered.FindStringSubmatch(l.content)
		if m == nil {
			r.damaged++
			continue
		}
		n, _ := strconv.Atoi(m[2])
		if m[1] == "total" {
			r.total = n
			continue
		}
		if n <= last {
			c.Fatalf("%s: line %d comes after line %d", c.id, n, last)
		}
		last = n
		seen++
	}
	if r.total == 0 {
		c.Fatalf("%s: the last line is missing", c.id)
	}
	r.lost = r.total - seen
	return r
}

// Ten containers write while their supervisor is killed, three times. All of them continue, every
// exit code is right, and no line is written twice. At most those lines are lost that the killed
// supervisor had read and not yet written.
func TestSuccessorTakesOverContainersThatWrite(t *testing.T) {
	const containers, kills = 10, 3
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		var all []*container
		for n := range containers {
			pause := slowly
			if n >= 8 {
				pause = atFullSpeed
			}
			all = append(all, b.run(fmt.Sprint("writer", n), counting(10+n, pause)))
		}
		for _, c := range all {
			test.Eventually(t, c.id+" writes", func() bool { return size(t, c.logPath) > 0 })
		}
		for range kills {
			b.kill9()
			before := map[string]int64{}
			for _, c := range all {
				before[c.id] = size(t, c.logPath)
			}
			b.serve()
			for _, c := range all {
				if !c.alive() {
					t.Fatalf("%s exited with its supervisor", c.id)
				}
				test.Eventually(t, c.id+" has written to the log again", func() bool { return size(t, c.logPath) > before[c.id] })
			}
		}
		for n, c := range all {
			test.Must(t, c.kill(unix.SIGTERM, false))
			if exit := c.wait(); exit.Status != uint32(10+n) || exit.Unknown || exit.PID != c.pid {
				t.Errorf("%s: %+v, want status %d of pid %d", c.id, exit, 10+n, c.pid)
			}
			c.mustDelete()
			got := c.counted()
			// A slow writer's lines are read one at a time, unless the supervisor has to wait for a
			// processor and reads several at once.
			const late = 250 // lines in half a second
			allowed := kills * late
			if n >= 8 {
				allowed = kills * inHand
			}
			t.Logf("%s: of %d lines %d are lost, %d damaged", c.id, got.total, got.lost, got.damaged)
			if got.lost > allowed || got.damaged > kills {
				t.Errorf("%s: %d lines are lost, at most %d are allowed; %d are damaged, at most %d are allowed", c.id, got.lost, allowed, got.damaged, kills)
			}
		}
	})
}

func size(t testing.TB, path string) int64 {
	t.Helper()
	info := test.Value(os.Stat(path))(t)
	return info.Size()
}

// untilDead waits for the exit of a container that no supervisor watches.
func (c *container) untilDead() {
	c.Helper()
	test.Eventually(c, c.id+" has exited", func() bool { return !c.alive() })
}

// If a container exits while no supervisor runs, the successor reads the exit code from the pidfd,
// and the last lines from the FIFO, which the daemon kept open.
func TestContainersEndWhileNobodyWatches(t *testing.T) {
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		end := b.run("ends", shell("trap 'echo last; exit 17' TERM; echo first; while :; do sleep 0.02; done"))
		end.said("first")
		b.kill9()
		test.Must(t, unix.Kill(end.pid, unix.SIGTERM))
		end.untilDead()
		b.serve()
		if exit := end.wait(); exit.Status != 17 || exit.Unknown {
			t.Errorf("the exit is %+v, want status 17", exit)
		}
		end.mustDelete()
		if l := end.lines(); len(l) != 2 || l[1].content != "last" {
			t.Errorf("the log has the lines %v", l)
		}
	})
}

func TestWithoutAPidfdALostExitCodeIsNotInvented(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("lost", shell("while :; do sleep 0.02; done"))
	b.kill9()
	test.Must(t, unix.Kill(c.pid, unix.SIGTERM))
	test.Must(t, unix.Kill(c.pid, unix.SIGKILL))
	c.untilDead()
	// The state of a process can be read until the process is reaped.
	test.Eventually(t, "the container's process is reaped", func() bool { return unix.Kill(c.pid, 0) != nil })
	c.pidfd.Close()
	c.pidfd = nil
	b.serve()
	if exit := c.wait(); exit.Status != 255 || !exit.Unknown {
		t.Errorf("the exit is %+v, want status 255 and unknown", exit)
	}
	c.mustDelete()
}

// A successor reports an OOM kill that happened while no supervisor ran.
func TestOOMWhileNobodyWatches(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("greedy", memoryLimited(15<<20, "while [ ! -e /proc/1/root/tmp/go ]; do sleep 0.02; done; x=a; while :; do x=$x$x; done"))
	b.kill9()
	test.Must(t, os.WriteFile(fmt.Sprintf("/proc/%d/root/tmp/go", c.pid), nil, 0o600))
	c.untilDead()
	b.serve()
	if exit := c.wait(); exit.Status != 137 || !exit.OOM {
		t.Errorf("the exit is %+v, want status 137 and OOM", exit)
	}
	c.mustDelete()
}

// A successor returns the exit that its predecessor wrote to the journal.
func TestJournaledExitIsTold(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("ended", shell("echo bye; exit 5"))
	first := c.wait()
	b.kill9()
	c.pidfd.Close()
	c.pidfd = nil
	b.serve()
	if again := c.wait(); again != first || again.Status != 5 {
		t.Errorf("the successor returns the exit %+v, its predecessor returned %+v", again, first)
	}
	c.mustDelete()
	if l := c.lines(); len(l) != 1 {
		t.Errorf("the log has %v", l)
	}
}

func TestCreatedContainerStartsUnderASuccessor(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.create("later", shell("echo hello; exit 6"))
	b.kill9()
	b.serve()
	c.start()
	c.exits(6)
	c.mustDelete()
	if l := c.lines(); len(l) != 1 || l[0].content != "hello" {
		t.Errorf("the log has %v", l)
	}
}

func TestExecsDieWithTheirSupervisor(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("c", shell("sleep 1000"))
		e := c.addExec(false, false, "/bin/sh", "-c", "sleep 2001 & sleep 2002; true")
		test.Must(t, e.start())
		test.Eventually(t, "the exec and its children run", func() bool { return len(c.pids()) == 4 })
		b.kill9()
		b.serve()
		test.Eventually(t, "the exec and its children have exited", func() bool { return len(c.pids()) == 1 })
		if !c.alive() {
			t.Error("the container exited with its supervisor")
		}
		if got := c.exec("/bin/echo", "hi"); got.stdout != "hi\n" || got.status != 0 {
			t.Errorf("the result of a new exec is %+v", got)
		}
	})
}

// After a downgrade there may be a task with a kernel option that this supervisor does not know.
func TestTasksOfAnUnknownKernelAreLeftAlone(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", shell("sleep 1000"))
	b.kill9()
	file := test.Value(filepath.Glob(filepath.Join(b.dir, "tasks", "c", "*.json")))(t)
	for _, f := range file {
		text := test.Value(os.ReadFile(f))(t)
		if newer := strings.Replace(string(text), `"options":{`, `"options":{"kernel":"newer",`, 1); newer != string(text) {
			test.Must(t, os.WriteFile(f, []byte(newer), 0o600))
		}
	}
	b.serve()
	if !c.alive() {
		t.Error("the container was killed")
	}
	if _, err := c.delete(); !errdefs.IsNotFound(err) {
		t.Errorf("Delete returns %v, want not found", err)
	}
}

// With a kernel of its own, an exec continues after the runtime's call that waits for it was
// killed. The successor must kill the exec.
func TestExecsInAKernelOfItsOwnDieWithTheirSupervisor(t *testing.T) {
	b := newBed(t, findRuntime(t, "runsc"))
	c := b.run("c", shell("sleep 1000"))
	e := c.addExec(false, false, "/bin/sleep", "2002")
	test.Must(t, e.start())
	before := len(c.pids())
	b.kill9()
	b.serve()
	test.Eventually(t, "the exec has exited", func() bool { return len(c.pids()) == before-1 })
	if !c.alive() {
		t.Error("the container exited with its supervisor")
	}
}

// A successor deletes the container of a failed start that the runtime could not delete before.
func TestFailedStartIsDeletedByASuccessor(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "no-delete")
	test.Must(t, os.WriteFile(marker, nil, 0o600))
	b := newBed(t, scripted(t, findRuntime(t, "runc"), `[ $verb = run ] && { $real "$@"; exit 5; }
[ $verb = delete ] && [ -e `+marker+` ] && { echo "not now" >&2; exit 1; }`))
	c := b.create("c", shell("sleep 1000"))
	test.Fails(t, c.tryStart(), "the failing start succeeded")
	test.Must(t, os.Remove(marker))
	b.kill9()
	b.serve()
	c.mustDelete()
	test.ErrorIs(t, test.Err(os.Stat(filepath.Join(c.root(), c.id))), os.ErrNotExist, "the runtime's state of the container")
}

func TestTerminalAndInputAreTakenOver(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		cat := b.run("cat", containerConfig{args: []string{"/bin/cat"}, stdin: true})
		script := shell(`stty -echo; echo begin; read x; echo "got $x"; stty size; exit 9`)
		script.terminal, script.stdin = true, true
		term := b.run("term", script)
		term.said("begin")
		term.keepTerminal()
		cat.send("one\n")
		cat.said("one")
		b.kill9()
		b.serve()

		cat.send("two\n")
		cat.said("two")
		cat.keepIn.Close()
		cat.keepIn = nil
		cat.done(cat.task.CloseIO(cat.ctx(), &taskAPI.CloseIORequest{ID: cat.id, Stdin: true}))
		if exit := cat.wait(); exit.Status != 0 {
			t.Errorf("the exit of cat is %+v, want status 0", exit)
		}
		term.done(term.task.ResizePty(term.ctx(), &taskAPI.ResizePtyRequest{ID: term.id, Width: 91, Height: 17}))
		if _, err := term.task.ResizePty(term.ctx(), &taskAPI.ResizePtyRequest{ID: term.id, Width: 1 << 16}); !errdefs.IsInvalidArgument(errgrpc.ToNative(err)) {
			t.Errorf("ResizePty with a width of 65536: %v", err)
		}
		term.send("me\n")
		if exit := term.wait(); exit.Status != 9 || exit.Unknown {
			t.Errorf("the exit of the container with a terminal is %+v, want status 9", exit)
		}
		term.mustDelete()
		var got []string
		for _, l := range term.lines() {
			got = append(got, l.content)
		}
		test.EqualLists(t, "lines of the terminal", got, []string{"begin", "got me", "17 91"})
	})
}

// Sessions end with their supervisor. A session with CloseStdin ends the container's stdin then;
// any other session leaves stdin open for the next session.
func TestStdinEndsWithTheSupervisorOfItsSession(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		session := func(id string, once bool) *container {
			cfg := shell("while [ ! -e /tmp/go ]; do sleep 0.02; done; wc -c; exit 3")
			cfg.stdin = true
			c := b.run(id, cfg)
			c.keepIn.Close()
			c.keepIn = nil
			_, _, in := c.attachAs("to-"+id, true, &supervisorv1.AttachRequest{CloseStdin: once, UntilStdinEnds: !once})
			t.Cleanup(func() { in.Close() })
			test.Must(t, test.Err(in.WriteString("typed\n")))
			test.Eventually(t, "the input has reached the container's FIFO", func() bool {
				fd := test.Value(unix.Open(c.stdin, unix.O_RDONLY|unix.O_NONBLOCK, 0))(t)
				defer unix.Close(fd)
				n, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
				return err == nil && n == len("typed\n")
			})
			return c
		}
		once, often := session("once", true), session("often", false)
		b.kill9()
		b.serve()
		for _, c := range []*container{once, often} {
			test.Must(t, os.WriteFile(fmt.Sprintf("/proc/%d/root/tmp/go", c.pid), nil, 0o600))
		}
		once.exits(3)
		once.mustDelete()
		if l := once.lines(); len(l) != 1 || l[0].content != "6" {
			t.Errorf("the container with CloseStdin counted %v, want 6 bytes", l)
		}
		writer, err := os.OpenFile(often.stdin, os.O_WRONLY|unix.O_NONBLOCK, 0)
		test.Mustf(t, err, "open the stdin of the container without CloseStdin")
		test.Must(t, test.Err(writer.WriteString("more\n")))
		writer.Close()
		test.Must(t, test.Err(often.task.CloseIO(often.ctx(), &taskAPI.CloseIORequest{ID: often.id, Stdin: true})))
		often.exits(3)
		often.mustDelete()
		if l := often.lines(); len(l) != 1 || l[0].content != "11" {
			t.Errorf("the container without CloseStdin counted %v, want 11 bytes", l)
		}
	})
}

// Shutdown fails while a container runs, except with Now. The successor then takes over the
// container.
func TestShutdownHandsOver(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", counting(3, slowly))
	if _, err := b.task.Shutdown(b.ctx(), &taskAPI.ShutdownRequest{}); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("Shutdown with a task: %v", err)
	}
	test.Eventually(t, "the container has set its trap", func() bool { return len(c.lines()) > 0 })
	// The supervisor may exit before it has sent its answer.
	if _, err := b.task.Shutdown(b.ctx(), &taskAPI.ShutdownRequest{Now: true}); err != nil && !errors.Is(err, ttrpc.ErrClosed) {
		t.Fatal(err)
	}
	select {
	case <-b.exited:
	case <-time.After(time.Minute):
		t.Fatal("the supervisor does not exit after Shutdown with Now")
	}
	b.kill9()
	b.serve()
	test.Must(t, c.kill(unix.SIGTERM, false))
	c.exits(3)
	c.mustDelete()
	if got := c.counted(); got.lost > 1 || got.damaged > 1 {
		t.Errorf("of the lines there are %+v, want at most 1 lost and 1 damaged", got)
	}
	if _, err := b.task.Shutdown(b.ctx(), &taskAPI.ShutdownRequest{}); err != nil && !errors.Is(err, ttrpc.ErrClosed) {
		t.Errorf("Shutdown without tasks: %v", err)
	}
	<-b.exited
	if state := b.cmd.ProcessState; !state.Success() {
		t.Errorf("the supervisor exited with %v", state)
	}
}
