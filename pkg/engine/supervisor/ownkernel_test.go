package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestMemberEndsWithItsSandbox(t *testing.T) {
	const why = "the sandbox that runs all containers of the pod was killed"
	for name, tt := range map[string]struct{ sandbox, want Exit }{
		"killed":         {Exit{PID: 7, Status: 137, ExitedAt: 1}, Exit{PID: 7, Status: 137, ExitedAt: 1, Why: why}},
		"out of memory":  {Exit{PID: 7, Status: 137, ExitedAt: 1, OOM: true}, Exit{PID: 7, Status: 137, ExitedAt: 1, OOM: true, Why: why}},
		"it broke":       {Exit{PID: 7, Status: 2, ExitedAt: 1}, Exit{PID: 7, Status: 255, ExitedAt: 1, Unknown: true}},
		"nobody knows":   {Exit{PID: 7, Status: 255, ExitedAt: 1, Unknown: true}, Exit{PID: 7, Status: 255, ExitedAt: 1, Unknown: true}},
		"said, unlikely": {Exit{PID: 7, Status: 137, ExitedAt: 1, Unknown: true}, Exit{PID: 7, Status: 255, ExitedAt: 1, Unknown: true}},
	} {
		if got := withSandbox(tt.sandbox); got != tt.want {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

// TestOOMKillsAreExcused has three members share a cgroup's counter, as those of a
// sandbox do: one kill makes one of them OOMKilled.
func TestOOMKillsAreExcused(t *testing.T) {
	p, err := newProcesses()
	test.Must(t, err)
	file := filepath.Join(t.TempDir(), "memory.oom_control")
	count := func(kills string) {
		t.Helper()
		test.Must(t, os.WriteFile(file, []byte("under_oom 0\noom_kill "+kills+"\n"), 0o600))
	}
	count("0")
	s := &Supervisor{ctx: t.Context(), dir: t.TempDir(), processes: p, tasks: map[string]*task{}}
	join := func(id string, sandbox int) *task {
		c := newTask(s, Task{ID: id, Process: Process{PID: sandbox}, Member: true})
		test.Must(t, os.MkdirAll(c.dir, 0o700))
		if c.oom, err = openCounter(p, file); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.oom.close)
		c.journal.ExcusedOOM = c.oom.excuseAll()
		s.tasks[id] = c
		return c
	}
	a, b, elsewhere := join("a", 1), join("b", 1), join("elsewhere", 2)
	if a.within.claimOOM() {
		t.Error("there was a kill before any")
	}
	count("1")
	late := join("late", 1)
	if !a.within.claimOOM() || b.within.claimOOM() || late.within.claimOOM() || !elsewhere.within.claimOOM() {
		t.Error("the kill is not that of the first who was killed, in each sandbox")
	}
	if j, err := ReadTask(s.dir, "b"); err != nil || j.ExcusedOOM != 1 {
		t.Errorf("a successor would read %d, %v", j.ExcusedOOM, err)
	}
	count("2")
	if !b.within.claimOOM() {
		t.Error("the next kill is nobody's")
	}
	count("3")
	if !late.within.claimOOM() {
		t.Error("one that began between a kill and its claim is excused of one too many")
	}
}

func TestLocksOfDeletedContainersAreSwept(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{
		"pod_sandbox:pod.lock", "pod_sandbox:pod.state",
		"gone_sandbox:pod.lock",
		"here_sandbox:pod.lock", "here_sandbox:pod.state",
		"else_sandbox:other.lock",
	} {
		test.Must(t, os.WriteFile(filepath.Join(root, name), nil, 0o600))
	}
	options := &Options{OwnKernel: true, Root: root}
	for id, sandbox := range map[string]string{"gone": "pod", "here": "pod", "pod": "pod", "unknown": "unknown"} {
		if got := locksOf(options, id, ""); got.sandbox != sandbox {
			t.Errorf("the sandbox of %s is %q, want %q", id, got.sandbox, sandbox)
		}
	}
	locksOf(&Options{Root: root}, "gone", "").sweep() // a runtime on this kernel has none
	if got := names(t, root); len(got) != 6 {
		t.Errorf("there are %v", got)
	}
	locksOf(options, "gone", "").sweepEnded() // the sandbox is there
	if got := names(t, root); len(got) != 6 {
		t.Errorf("there are %v", got)
	}
	locksOf(options, "gone", "").sweep()
	want := []string{"else_sandbox:other.lock", "here_sandbox:pod.lock", "here_sandbox:pod.state", "pod_sandbox:pod.lock", "pod_sandbox:pod.state"}
	test.EqualLists(t, "there", names(t, root), want)
}

// TestLocksOfAnEndedSandboxAreSwept is about a member whose delete failed, after
// it had removed its own lock, because the sandbox was deleted beside it.
func TestLocksOfAnEndedSandboxAreSwept(t *testing.T) {
	root, bundle := t.TempDir(), t.TempDir()
	for path, text := range map[string]string{
		filepath.Join(root, "pod_sandbox:pod.lock"):     "",
		filepath.Join(root, "else_sandbox:other.lock"):  "",
		filepath.Join(root, "else_sandbox:other.state"): "",
		filepath.Join(bundle, "config.json"):            `{"annotations": {"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": "pod"}}`,
	} {
		test.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
	locksOf(&Options{OwnKernel: true, Root: root}, "gone", bundle).sweepEnded()
	test.EqualLists(t, "there", names(t, root), []string{"else_sandbox:other.lock", "else_sandbox:other.state"})
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries := test.Value(os.ReadDir(dir))(t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
