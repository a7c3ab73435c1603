package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// installed are berth's own programs, as a package would install and replace them.
type installed struct{ shim, pause string }

func install(t *testing.T) installed {
	t.Helper()
	dir := t.TempDir()
	p := installed{filepath.Join(dir, "berth-shim"), filepath.Join(dir, "berth-pause")}
	p.upgrade(t, "")
	return p
}

// upgrade replaces both by builds of their own, which run all the same: what
// follows the last section of a program is not looked at.
func (p installed) upgrade(t *testing.T, build string) {
	t.Helper()
	for _, path := range []string{p.shim, p.pause} {
		program, err := os.ReadFile(filepath.Join(testbed.Built(t), filepath.Base(path)))
		testbed.Must(t, err)
		next := path + ".next"
		if err := os.WriteFile(next, append(program, build...), 0o755); err != nil { //nolint:gosec // it is a program
			t.Fatal(err)
		}
		testbed.Must(t, os.Rename(next, path))
	}
}

// TestUpgradeUnderLivePods replaces berth-shim and berth-pause, and restarts the
// daemon, while pods live. Theirs stay: a successor of their supervisor is the
// build of the first one. When the last pod is gone, so are the old programs.
func TestUpgradeUnderLivePods(t *testing.T) {
	programs := install(t)
	config := fmt.Sprintf("default_runtime = \"runc\"\n[engine]\nshim_path = %q\npause_path = %q\n[runtimes.runc]\nruntime_path = %q\nsandbox_process = \"always\"\n",
		programs.shim, programs.pause, testbed.Part(t, testbed.Runc))
	b := newBed(t, testbed.Options{Config: config})
	first := b.own(t)
	atRest := b.Rest(t)
	old := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", counter}})
	is := b.info(t, old.Container.ID)
	before := b.program(t, is.Supervisor)

	programs.upgrade(t, "another build")
	b.Restart(t)
	fresh := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	freshSupervisor := b.info(t, fresh.Container.ID).Supervisor
	after := b.program(t, freshSupervisor)
	if after == before {
		t.Fatalf("a new pod is supervised by the old build %s", after)
	}
	b.killSupervisor(t, is.Supervisor)
	testbed.Same(t, b.program(t, is.Supervisor), before, "the successor of %s is", before)
	b.killSupervisor(t, freshSupervisor)
	testbed.Same(t, b.program(t, freshSupervisor), after, "the successor of %s is", after)
	grows(t, old.Container)
	added := old.RunContainer(t, "added", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	added.WaitState(t, runtimeapi.ContainerState_CONTAINER_RUNNING)
	// Both daemons that started while the old pod lived left its programs alone.
	b.Restart(t)
	if kept := b.own(t); !contains(kept, first) {
		t.Errorf("of %q, which a pod uses, %q are left", first, kept)
	}
	old.Remove(t)
	// A supervisor without pods idles for a minute; a restart sends it away.
	b.Restart(t)
	testbed.Eventually(t, time.Minute, func() error {
		if kept := b.own(t); slices.ContainsFunc(first, func(name string) bool { return slices.Contains(kept, name) }) || len(kept) != len(first) {
			return fmt.Errorf("kept are %q, and nobody needs %q any more", kept, first)
		}
		return nil
	})
	b.killSupervisor(t, freshSupervisor)
	testbed.Same(t, fresh.Container.Exec(t, "echo", "alive"), "alive\n", "exec said")
	fresh.Remove(t)
	b.NothingLeft(t, atRest)
}

func contains(all, some []string) bool {
	return !slices.ContainsFunc(some, func(name string) bool { return !slices.Contains(all, name) })
}

// kept are the names of the copies that berth has of programs.
func (b *bed) kept(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(b.Root, "tools"))
	testbed.Must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// own are the kept programs that are berth's own.
func (b *bed) own(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(b.kept(t), func(name string) bool { return strings.HasPrefix(name, "runtime-") || name[0] == '.' })
}

// program is the file that the supervisor with that key runs.
func (b *bed) program(t *testing.T, key string) string {
	t.Helper()
	exe, err := os.Readlink("/proc/" + strconv.Itoa(b.supervisors(t)[key]) + "/exe")
	testbed.Must(t, err)
	if strings.HasSuffix(exe, " (deleted)") {
		t.Errorf("supervisor %s runs %s", key, exe)
	}
	return exe
}

// TestNewerRecords goes back to a berth that does not know the records of the one
// before: it says so, and leaves everything as it was.
func TestNewerRecords(t *testing.T) {
	b := newBed(t, testbed.Options{})
	atRest := b.Rest(t)
	p := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", counter}})
	pid := b.info(t, p.Container.ID).PID
	alive := life(t, pid)
	b.Stop(t)
	record := filepath.Join(b.Root, "records", "containers", p.Container.ID, "spec.json")
	ours, err := os.ReadFile(record)
	testbed.Must(t, err)
	newer := strings.Replace(string(ours), `{"format":2,`, `{"format":3,`, 1)
	if newer == string(ours) {
		t.Fatalf("the record carries no format: %s", ours)
	}
	testbed.Must(t, os.WriteFile(record, []byte(newer), 0o600))
	err = b.TryStart(testbed.Within(t, time.Minute))
	if err == nil {
		t.Fatal("it has started on records of a newer berth")
	}
	for _, want := range []string{"format 3", p.Container.ID, "reinstall the newer berth"} {
		if !strings.Contains(b.Log()+err.Error(), want) {
			t.Errorf("the refusal does not say %q: %v\n%s", want, err, b.Log())
		}
	}
	testbed.Same(t, life(t, pid), alive, "the pod's process was %s, now", alive)
	if now, err := os.ReadFile(record); err != nil || string(now) != newer {
		t.Errorf("the record was changed to %s: %v", now, err)
	}
	testbed.Must(t, os.WriteFile(record, ours, 0o600))
	b.Start(t)
	grows(t, p.Container)
	p.Remove(t)
	b.NothingLeft(t, atRest)
}
