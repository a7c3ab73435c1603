package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
	"github.com/berth-cri/berth/pkg/engine/supervisor/cgroups"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
)

func TestMemberEndsWithItsSandbox(t *testing.T) {
	const why = "the sandbox that runs all containers of the pod was killed"
	for name, tt := range map[string]struct{ sandbox, want journal.Exit }{
		"killed":                       {journal.Exit{PID: 7, Status: 137, ExitedAt: 1}, journal.Exit{PID: 7, Status: 137, ExitedAt: 1, Why: why}},
		"out of memory":                {journal.Exit{PID: 7, Status: 137, ExitedAt: 1, OOM: true}, journal.Exit{PID: 7, Status: 137, ExitedAt: 1, OOM: true, Why: why}},
		"sandbox crashed":              {journal.Exit{PID: 7, Status: 2, ExitedAt: 1}, journal.Exit{PID: 7, Status: 255, ExitedAt: 1, Unknown: true}},
		"unknown exit":                 {journal.Exit{PID: 7, Status: 255, ExitedAt: 1, Unknown: true}, journal.Exit{PID: 7, Status: 255, ExitedAt: 1, Unknown: true}},
		"unknown exit with status 137": {journal.Exit{PID: 7, Status: 137, ExitedAt: 1, Unknown: true}, journal.Exit{PID: 7, Status: 255, ExitedAt: 1, Unknown: true}},
	} {
		if got := withSandbox(tt.sandbox); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// A member whose start fails must not reap the sandbox: the task of the first container needs the
// sandbox's exit status.
func TestFailedMemberLeavesTheSandbox(t *testing.T) {
	p := test.Value(processes.New())(t)
	fork := func() (pid, pidfd int) {
		pid, pidfd, err := p.Fork(processes.Command{Argv: []string{"/bin/sleep", "1000"}})
		test.Must(t, err)
		return pid, pidfd
	}
	sandbox, pidfd := fork()
	l := &launch{pidFile: filepath.Join(t.TempDir(), "pid")}
	test.Must(t, os.WriteFile(l.pidFile, []byte(strconv.Itoa(sandbox)), 0o600))
	member := &ownKernel{task: &task{processes: p}}
	member.task.kernel = member
	got := test.Value(member.adopt(t.Context(), l, bundle.Facts{Annotations: map[string]string{"io.kubernetes.cri.container-type": "container"}}))(t)
	got.release(p)

	orphan, orphanfd := fork()
	for _, fd := range []int{pidfd, orphanfd} {
		test.Must(t, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
		processes.HasEnded(fd, time.Minute)
	}
	p.ReapWhenDead(orphan, orphanfd)
	test.Eventually(t, "the orphan is reaped", func() bool { return errors.Is(unix.Kill(orphan, 0), unix.ESRCH) })
	if status, err := p.Reap(sandbox, pidfd); err != nil || status != killedStatus {
		t.Errorf("the sandbox exited with %d, %v", status, err)
	}
	unix.Close(pidfd)
}

// TestOOMKillsAreExcused lets members of two sandboxes share one counter of OOM kills. In each
// sandbox, only the first member that calls claimOOM gets a kill.
func TestOOMKillsAreExcused(t *testing.T) {
	p, err := processes.New()
	test.Must(t, err)
	file := filepath.Join(t.TempDir(), "memory.oom_control")
	count := func(kills string) {
		t.Helper()
		test.Must(t, os.WriteFile(file, []byte("under_oom 0\noom_kill "+kills+"\n"), 0o600))
	}
	count("0")
	s := &supervisor{ctx: t.Context(), dir: t.TempDir(), processes: p, tasks: map[string]*task{}}
	join := func(id string, sandbox int) *task {
		c := newTask(s, journal.Task{ID: id, Process: processes.Process{PID: sandbox}, Member: true, Options: journal.Options{Kernel: "gvisor"}})
		test.Must(t, os.MkdirAll(c.dir, 0o700))
		c.oom = cgroups.CountOOM(t.Context(), p, cgroups.Cgroup{Memory: filepath.Dir(file)}, nil)
		t.Cleanup(c.oom.Close)
		c.journal.IgnoredOOM = c.oom.IgnoreAll()
		s.tasks[id] = c
		return c
	}
	claims := func(t *task) bool { return t.kernel.(*ownKernel).claimOOM() }
	a, b, elsewhere := join("a", 1), join("b", 1), join("elsewhere", 2)
	if claims(a) {
		t.Error("claimOOM is true before any kill")
	}
	count("1")
	late := join("late", 1)
	if !claims(a) || claims(b) || claims(late) || !claims(elsewhere) {
		t.Error("the first kill is not claimed by exactly the first member of each sandbox")
	}
	if j, err := journal.ReadTask(s.dir, "b"); err != nil || j.IgnoredOOM != 1 {
		t.Errorf("the journal of b has %d ignored kills, %v; want 1", j.IgnoredOOM, err)
	}
	count("2")
	if !claims(b) {
		t.Error("b cannot claim the second kill")
	}
	count("3")
	if !claims(late) {
		t.Error("late, which joined between the first kill and its claim, cannot claim the third kill")
	}
}
