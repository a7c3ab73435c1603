package supervisor_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

func TestExitStatus(t *testing.T) {
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		for i, tt := range []struct {
			script string
			want   uint32
		}{
			{"exit 0", 0},
			{"exit 3", 3},
			{"exit 255", 255},
			{"sleep 0.3; exit 42", 42},
		} {
			c := b.run(fmt.Sprintf("c%d", i), shell("echo out; echo err >&2; "+tt.script))
			if exit := c.wait(); exit.Status != tt.want || exit.Unknown || exit.OOM || exit.PID != c.pid {
				t.Errorf("%s: %+v, want status %d of pid %d", tt.script, exit, tt.want, c.pid)
			}
			reply, err := c.delete()
			test.Mustf(t, err, "delete")
			if reply.ExitStatus != tt.want || reply.Pid != uint32(c.pid) {
				t.Errorf("Delete returns %+v, want status %d of pid %d", reply, tt.want, c.pid)
			}
			got := map[string]string{}
			for _, l := range c.lines() {
				got[l.stream] += l.content
			}
			if got["stdout"] != "out" || got["stderr"] != "err" {
				t.Errorf("%s: the log has %v", tt.script, got)
			}
			if _, err := os.Stat(b.dir + "/tasks/" + c.id); !os.IsNotExist(err) {
				t.Errorf("the task's journal is left: %v", err)
			}
			test.Fails(t, test.Err(c.task.State(c.ctx(), &taskAPI.StateRequest{ID: c.id})), "a deleted task has a state")
		}
		if entries, _ := os.ReadDir(b.root()); len(entries) > 0 && r.name != "runsc" {
			t.Errorf("the runtime still has %v", entries)
		}
	})
}

// Start returns once the program runs, so that a signal does not hit the runtime's init process.
// Busy processes increase the chance that a wrong Start returns too early.
func TestStartAnswersForTheProgram(t *testing.T) {
	forEachRuntime(t, []string{"runc"}, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		for range 2 * runtime.GOMAXPROCS(0) {
			busy := exec.Command("sh", "-c", "while :; do :; done")
			test.Must(t, busy.Start())
			t.Cleanup(func() {
				_ = busy.Process.Kill()
				_ = busy.Wait()
			})
		}
		for i := range 30 {
			c := b.run(fmt.Sprintf("c%d", i), shell("exec sleep 1000"))
			name := test.Value(os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.pid)))(t)
			if strings.HasPrefix(string(name), "runc:") {
				t.Errorf("start %d returned while the process is still %s", i, name)
			}
			test.Must(t, c.kill(unix.SIGKILL, true))
			c.wait()
			c.done(c.delete())
		}
	})
}

func TestAContainerStartsOnce(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.create("once", shell("sleep 1000"))
	state := func() tasktypes.Status {
		r := test.Value(c.task.State(c.ctx(), &taskAPI.StateRequest{ID: c.id}))(t)
		return r.Status
	}
	test.Equal(t, "state before the start", state(), tasktypes.Status_CREATED)
	if _, err := b.tryCreate("once", shell("true")); !errdefs.IsAlreadyExists(err) && !os.IsExist(err) {
		t.Errorf("a second task of the same id: %v", err)
	}
	c.start()
	test.Equal(t, "state after the start", state(), tasktypes.Status_RUNNING)
	test.Is(t, c.tryStart(), errdefs.IsFailedPrecondition, "a second start")
	test.Is(t, test.Err(c.delete()), errdefs.IsFailedPrecondition, "deleting a running container")
	test.Must(t, c.kill(unix.SIGKILL, false))
	c.exits(137)
	test.Equal(t, "state after the exit", state(), tasktypes.Status_STOPPED)
	test.Is(t, c.kill(unix.SIGKILL, false), errdefs.IsNotFound, "a kill after the exit")
	test.Is(t, c.tryStart(), errdefs.IsFailedPrecondition, "a start after the exit")
	c.mustDelete()
}

func TestNeverStartedContainerIsDeleted(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.create("idle", shell("true"))
	task, err := journal.ReadTask(b.dir, "idle")
	if err != nil || task.State != journal.TaskCreated {
		t.Errorf("the journal of a created task: %+v, %v", task, err)
	}
	test.Is(t, c.kill(unix.SIGTERM, false), errdefs.IsFailedPrecondition, "kill of a container that was never started")
	c.mustDelete()
	test.Is(t, test.Err(journal.ReadTask(b.dir, "idle")), errdefs.IsNotFound, "journal after Delete")
}

func TestPauseAndUpdate(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("p", shell("while :; do date +%s.%N; sleep 0.01; done"))
		c.done(c.task.Pause(c.ctx(), &taskAPI.PauseRequest{ID: c.id}))
		s, err := c.task.State(c.ctx(), &taskAPI.StateRequest{ID: c.id})
		if err != nil || s.Status != tasktypes.Status_PAUSED {
			t.Errorf("state while paused: %v, %v", s, err)
		}
		// Lines from before the pause may still be on their way to the log.
		before := len(c.lines())
		test.Eventually(t, "a paused container writes nothing", func() bool {
			was := before
			time.Sleep(100 * time.Millisecond) // a process in the kernel's freezer writes nothing more
			before = len(c.lines())
			return before == was
		})
		c.done(c.task.Resume(c.ctx(), &taskAPI.ResumeRequest{ID: c.id}))
		test.Eventually(t, "the resumed container writes again", func() bool { return len(c.lines()) > before })
		updateMemory(c, 64<<20)
		// A kill must also work on a paused container.
		c.done(c.task.Pause(c.ctx(), &taskAPI.PauseRequest{ID: c.id}))
		test.Must(t, c.kill(unix.SIGKILL, false))
		c.exits(137)
		c.mustDelete()
	})
}

// A failing CRIU may freeze the cgroup again after the container has exited. Runtimes consider such
// a container paused and refuse to delete it. Delete must succeed nevertheless.
func TestFrozenAfterItsEnd(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		dir := t.TempDir()
		b := newBed(t, scripted(t, r, `[ "$verb" = delete ] && mkdir `+dir+`/once 2>/dev/null && { read file state < `+dir+`/freeze; echo $state > $file; }`))
		c := b.run("p", shell("sleep 1000"))
		freeze := "/sys/fs/cgroup/freezer" + c.cgroup + "/" + c.id + "/freezer.state FROZEN\n"
		if _, err := os.Stat(strings.Fields(freeze)[0]); err != nil {
			freeze = "/sys/fs/cgroup" + c.cgroup + "/" + c.id + "/cgroup.freeze 1\n"
		}
		test.Must(t, os.WriteFile(filepath.Join(dir, "freeze"), []byte(freeze), 0o600))
		test.Must(t, c.kill(unix.SIGKILL, false))
		c.wait()
		test.Eventually(t, "the exited container is frozen", func() bool {
			_, err := os.Stat(filepath.Join(dir, "once"))
			return err == nil
		})
		c.mustDelete()
	})
}

// A kill of a container ends its running checkpoint, even if CRIU hangs.
func TestKilledWhileItIsWritten(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		begun := filepath.Join(t.TempDir(), "begun")
		b := newBed(t, scripted(t, r, `[ "$verb" = checkpoint ] && { : > `+begun+`; exec sleep 1000; }`))
		c := b.run("p", shell("sleep 1000"))
		written := make(chan error, 1)
		go func() {
			_, err := c.task.Checkpoint(c.ctx(), &taskAPI.CheckpointTaskRequest{ID: c.id, Path: t.TempDir()})
			written <- err
		}()
		test.Eventually(t, "the checkpoint has begun", func() bool {
			_, err := os.Stat(begun)
			return err == nil
		})
		test.Must(t, c.kill(unix.SIGKILL, true))
		select {
		case err := <-written:
			test.Fails(t, err, "the checkpoint of a killed container succeeded")
		case <-time.After(30 * time.Second):
			t.Fatal("the checkpoint of the killed container still runs")
		}
		c.wait()
		c.mustDelete()
	})
}

func updateMemory(c *container, limit int64) {
	c.Helper()
	resources := anyJSON(c, map[string]any{"memory": map[string]any{"limit": limit}})
	c.done(c.task.Update(c.ctx(), &taskAPI.UpdateTaskRequest{ID: c.id, Resources: resources}))
	file := "/sys/fs/cgroup/memory" + c.cgroup + "/" + c.id + "/memory.limit_in_bytes"
	if _, err := os.Stat(file); err != nil {
		file = "/sys/fs/cgroup" + c.cgroup + "/" + c.id + "/memory.max"
	}
	test.Equal(c, file, test.File(c, file), fmt.Sprintln(limit))
}

func TestOOMIsReported(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		c := b.run("greedy", memoryLimited(15<<20, "x=a; while :; do x=$x$x; done"))
		if exit := c.wait(); exit.Status != 137 || !exit.OOM {
			t.Errorf("the exit is %+v, want status 137 and OOM", exit)
		}
		c.mustDelete()
		c = b.run("modest", memoryLimited(64<<20, "exit 137"))
		if exit := c.wait(); exit.Status != 137 || exit.OOM {
			t.Errorf("the exit is %+v, want status 137 without OOM", exit)
		}
		c.mustDelete()
	})
}

// If the first process of a container in the host's pid namespace exits, the kernel does not kill
// the others. They must be killed and reaped nevertheless.
func TestProcessesInAForeignPIDNamespaceEndWithTheFirst(t *testing.T) {
	forEachRuntime(t, hostRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		for _, tt := range []struct {
			id, script string
			end        func(c *container)
		}{
			{"exits", "sleep 998 & sleep 0.2", func(*container) {}},
			{"killed", "sleep 998 & echo ready; sleep 999", func(c *container) {
				c.said("ready")
				test.Must(t, c.kill(unix.SIGKILL, false))
			}},
		} {
			c := b.run(tt.id, inHostPIDs(tt.script))
			pids, err := c.task.Pids(c.ctx(), &taskAPI.PidsRequest{ID: c.id})
			if err != nil || len(pids.Processes) < 1 {
				t.Fatalf("pids: %v, %v", pids, err)
			}
			tt.end(c)
			c.wait()
			c.mustDelete()
			for _, p := range pids.Processes {
				test.Eventually(t, fmt.Sprintf("%s: process %d is reaped", tt.id, p.Pid), func() bool { return unix.Kill(int(p.Pid), 0) != nil })
			}
		}
	})
}

// A successor reports a paused container as paused. A failed pause or resume does not change the
// reported state.
func TestPausedIsKnown(t *testing.T) {
	for _, name := range []string{"runc", "crun", "runsc"} {
		t.Run(name, func(t *testing.T) {
			fail := filepath.Join(t.TempDir(), "fail")
			b := newBed(t, scripted(t, findRuntime(t, name), `[ -e `+fail+`-$verb ] && { echo "it fails" >&2; exit 1; }`))
			c := b.run("p", shell("sleep 1000"))
			state := func(want tasktypes.Status) {
				t.Helper()
				s, err := c.task.State(c.ctx(), &taskAPI.StateRequest{ID: c.id})
				if err != nil || s.Status != want {
					t.Errorf("the state is %v, %v; want %v", s, err, want)
				}
			}
			// failing sets whether the runtime's subcommand verb fails.
			failing := func(verb string, on bool) {
				t.Helper()
				err := os.WriteFile(fail+"-"+verb, nil, 0o600)
				if !on {
					err = os.Remove(fail + "-" + verb)
				}
				test.Must(t, err)
			}
			failing("pause", true)
			test.Fails(t, test.Err(c.task.Pause(c.ctx(), &taskAPI.PauseRequest{ID: c.id})), "the failing pause succeeded")
			state(tasktypes.Status_RUNNING)
			failing("pause", false)
			c.done(c.task.Pause(c.ctx(), &taskAPI.PauseRequest{ID: c.id}))
			b.kill9()
			b.serve()
			state(tasktypes.Status_PAUSED)
			failing("resume", true)
			test.Fails(t, test.Err(c.task.Resume(c.ctx(), &taskAPI.ResumeRequest{ID: c.id})), "the failing resume succeeded")
			state(tasktypes.Status_PAUSED)
			failing("resume", false)
			c.done(c.task.Resume(c.ctx(), &taskAPI.ResumeRequest{ID: c.id}))
			state(tasktypes.Status_RUNNING)
			b.kill9()
			b.serve()
			state(tasktypes.Status_RUNNING)
		})
	}
}

// A checkpoint continues if its caller disconnects, because killing CRIU could damage the
// container's processes.
func TestCheckpointOutlivesItsCaller(t *testing.T) {
	dir := t.TempDir()
	b := newBed(t, scripted(t, findRuntime(t, "runc"), `[ $verb = checkpoint ] && { touch `+dir+`/begun; sleep 1; touch `+dir+`/done; exit 0; }`))
	c := b.run("c", shell("sleep 1000"))
	answered := make(chan error, 1)
	go func() {
		_, err := c.task.Checkpoint(c.ctx(), &taskAPI.CheckpointTaskRequest{ID: c.id, Path: dir + "/images"})
		answered <- err
	}()
	test.Eventually(t, "the checkpoint has begun", func() bool {
		select {
		case err := <-answered:
			t.Fatal(err)
		default:
		}
		_, err := os.Stat(dir + "/begun")
		return err == nil
	})
	b.conn.Close()
	b.reconnect()
	test.Fails(t, <-answered, "Checkpoint returned no error over a closed connection")
	test.Eventually(t, "the checkpoint is complete", func() bool { _, err := os.Stat(dir + "/done"); return err == nil })
}
