package cgroup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		println("these tests make cgroups: run them as root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// makeCgroup makes a cgroup in every hierarchy of the machine, as a runtime does.
func makeCgroup(t testing.TB) Paths {
	t.Helper()
	name := fmt.Sprintf("/berth-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"))
	spec := test.Value(Path(Cgroupfs, DefaultPrefix, name, "leaf"))(t)
	p := HostPaths(spec)
	if len(p.directories()) == 0 {
		t.Fatal("no hierarchy is mounted")
	}
	for _, dir := range p.directories() {
		test.Must(t, os.MkdirAll(dir, 0o755))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		test.Check(t, p.Kill(ctx))
		test.Check(t, p.Remove(ctx))
		for _, dir := range p.directories() { // the test created the parents
			test.Check(t, os.Remove(filepath.Dir(dir)))
		}
	})
	return p
}

// join moves a process into the subgroup sub of a cgroup, in every hierarchy.
func join(t testing.TB, p Paths, sub string, pid int) {
	t.Helper()
	for _, dir := range p.directories() {
		target := filepath.Join(dir, sub)
		test.Must(t, os.MkdirAll(target, 0o755))
		copyCpuset(t, dir)
		copyCpuset(t, target)
		test.Must(t, os.WriteFile(filepath.Join(target, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
	}
}

// copyCpuset copies the parent's CPUs and memory nodes to a new v1 cpuset cgroup, which has none.
func copyCpuset(t testing.TB, dir string) {
	t.Helper()
	parent := filepath.Dir(dir)
	if !exists(filepath.Join(parent, "cpuset.cpus")) {
		return
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		test.Must(t, err)
		if strings.TrimSpace(string(value)) == "" {
			copyCpuset(t, parent)
			if value, err = os.ReadFile(filepath.Join(parent, file)); err != nil {
				t.Fatal(err)
			}
		}
		test.Must(t, os.WriteFile(filepath.Join(dir, file), value, 0))
	}
}

// start starts a process, which is killed and reaped when the test ends.
func start(t testing.TB, command ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(command[0], command[1:]...)
	test.Must(t, cmd.Start())
	done := make(chan struct{})
	go func() { // ends with the process, which the cleanup kills
		defer close(done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
	})
	return cmd
}

// hold returns a command that allocates memory once tell is called, and keeps it until
// the command is killed. The kernel charges memory to the cgroup that a process is in
// when it allocates, so call tell after join.
func hold(t testing.TB, mebibytes int) (command []string, tell func()) {
	t.Helper()
	fifo := filepath.Join(t.TempDir(), "go")
	test.Must(t, unix.Mkfifo(fifo, 0o600))
	// dd reads one block into memory, then blocks because sleep does not read the pipe.
	script := fmt.Sprintf("read go < %s; dd if=/dev/zero bs=%dM count=1 2>/dev/null | sleep 300", fifo, mebibytes)
	return []string{"sh", "-c", script}, func() {
		test.Must(t, os.WriteFile(fifo, []byte("go\n"), 0))
	}
}

// eventually reads statistics until wanted returns true: the kernel adds up the
// counters of its processors up to two seconds later.
func eventually(t *testing.T, p Paths, wanted func(Detail) bool) {
	t.Helper()
	test.Retry(t, func() error {
		s := test.Value(ReadDetail(p))(t)
		if !wanted(s) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

func TestRealCgroup(t *testing.T) {
	p := makeCgroup(t)
	test.Checkf(t, test.Err(ReadStats(p)), "statistics of an empty cgroup")
	command, tell := hold(t, 16)
	busy := start(t, command...)
	join(t, p, "", busy.Process.Pid)
	nested := start(t, "sleep", "300")
	join(t, p, "made/by/container", nested.Process.Pid)

	pids, err := p.Processes()
	want := []int{busy.Process.Pid, nested.Process.Pid}
	slices.Sort(want)
	if err != nil || !slices.Equal(pids, want) {
		t.Errorf("processes %v, %v, want %v", pids, err, want)
	}
	if dir := p.Dir("memory"); dir != "" {
		test.Must(t, os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte("64M"), 0))
	}
	tell()
	eventually(t, p, func(s Detail) bool { // sh, dd and two times sleep
		const mapped = 16 << 20
		return s.CPUUsageNano.N > 0 && s.Pids == known(4) && s.MemoryUsage.N >= mapped && s.WorkingSet.N >= mapped &&
			s.RSS.N >= mapped && s.PageFaults.N > 0 && (host().unified != "" || s.MemoryLimit == known(64<<20))
	})
	if n, err := OOMKills(p); n != 0 || err != nil {
		t.Errorf("oom kills %d, %v", n, err)
	}

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	test.Is(t, p.Remove(short), errdefs.IsDeadlineExceeded, "removal of a cgroup in use")
	test.Must(t, p.Kill(t.Context()))
	for range 2 { // removing again is not an error
		test.Must(t, p.Remove(t.Context()))
	}
	for _, dir := range p.directories() {
		if exists(dir) {
			t.Errorf("%s is left", dir)
		}
		if !exists(filepath.Dir(dir)) {
			t.Errorf("the parent %s was removed", filepath.Dir(dir))
		}
	}
	test.Is(t, test.Err(ReadStats(p)), errdefs.IsNotFound, "statistics of a cgroup that is gone")
	test.Check(t, p.Kill(t.Context()))
}

// SIGKILL alone does not end a frozen process.
func TestKillFrozen(t *testing.T) {
	p := makeCgroup(t)
	join(t, p, "", start(t, "sleep", "300").Process.Pid)
	p.freeze(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	test.Must(t, p.Kill(ctx))
}

func TestFailuresOfDifferentKinds(t *testing.T) {
	failures := map[string]error{
		"/a": &os.PathError{Op: "rmdir", Path: "/a/x", Err: unix.EACCES},
		"/b": &os.PathError{Op: "rmdir", Path: "/b/x", Err: unix.EACCES},
		"/c": &os.PathError{Op: "rmdir", Path: "/c/x", Err: unix.EROFS},
	}
	err := oncePerReason([]string{"/a", "/b", "/c", "/gone"}, func(dir string) error { return failures[dir] })
	want := "remove cgroup /a: rmdir /a/x: permission denied\nremove cgroup /c: rmdir /c/x: read-only file system"
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	if err := oncePerReason([]string{"/gone"}, func(string) error { return nil }); err != nil {
		t.Errorf("no removal failed, but the error is %v", err)
	}
}
