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

// installed has the paths of berth's own programs, as a package installs them.
type installed struct{ shim, pause string }

func install(t *testing.T) installed {
	t.Helper()
	dir := t.TempDir()
	p := installed{filepath.Join(dir, "berth-shim"), filepath.Join(dir, "berth-pause")}
	p.upgrade(t, "")
	return p
}

// upgrade replaces both programs by different files. The text build is appended to
// each program, which does not change how the program runs.
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
// daemon, while pods run. Old pods keep the old programs: if their supervisor is killed,
// the new one is the old build. The old programs are removed after the last old pod.
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
	testbed.Same(t, b.program(t, is.Supervisor), before, "the program of the new supervisor was %s, and is", before)
	b.killSupervisor(t, freshSupervisor)
	testbed.Same(t, b.program(t, freshSupervisor), after, "the program of the new supervisor was %s, and is", after)
	grows(t, old.Container)
	added := old.RunContainer(t, "added", testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	added.WaitState(t, runtimeapi.ContainerState_CONTAINER_RUNNING)
	// Neither daemon that started while the old pod ran may have removed its programs.
	b.Restart(t)
	if kept := b.own(t); !contains(kept, first) {
		t.Errorf("programs %q are in use by a pod, but only %q are kept", first, kept)
	}
	old.Remove(t)
	// A supervisor without pods waits for a minute; a restart of berth stops it.
	b.Restart(t)
	testbed.Eventually(t, time.Minute, func() error {
		if kept := b.own(t); slices.ContainsFunc(first, func(name string) bool { return slices.Contains(kept, name) }) || len(kept) != len(first) {
			return fmt.Errorf("kept programs: %q, among them unused ones of %q", kept, first)
		}
		return nil
	})
	b.killSupervisor(t, freshSupervisor)
	testbed.Same(t, fresh.Container.Exec(t, "echo", "alive"), "alive\n", "exec printed")
	fresh.Remove(t)
	b.NothingLeft(t, atRest)
}

func contains(all, some []string) bool {
	return !slices.ContainsFunc(some, func(name string) bool { return !slices.Contains(all, name) })
}

// kept returns the names in the directory of kept binaries.
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

// own returns the names of berth's own kept programs.
func (b *bed) own(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(b.kept(t), func(name string) bool { return strings.HasPrefix(name, "runtime-") || name[0] == '.' })
}

// program is the path of the program that the supervisor with that key runs.
func (b *bed) program(t *testing.T, key string) string {
	t.Helper()
	exe, err := os.Readlink("/proc/" + strconv.Itoa(b.supervisors(t)[key]) + "/exe")
	testbed.Must(t, err)
	if strings.HasSuffix(exe, " (deleted)") {
		t.Errorf("supervisor %s runs a deleted program: %s", key, exe)
	}
	return exe
}

// TestNewerRecords starts berth on a record of a newer format, as after a downgrade. The
// start must fail with advice, and the pod and its record must stay as they are.
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
		t.Fatalf("the record does not begin with format 2: %s", ours)
	}
	testbed.Must(t, os.WriteFile(record, []byte(newer), 0o600))
	err = b.TryStart(testbed.Within(t, time.Minute))
	if err == nil {
		t.Fatal("the daemon started on a record of a newer berth")
	}
	for _, want := range []string{"format 3", p.Container.ID, "reinstall the newer berth"} {
		if !strings.Contains(b.Log()+err.Error(), want) {
			t.Errorf("neither the error nor the log has %q: %v\n%s", want, err, b.Log())
		}
	}
	testbed.Same(t, life(t, pid), alive, "the pod's process was %s, and is", alive)
	if now, err := os.ReadFile(record); err != nil || string(now) != newer {
		t.Errorf("the record was changed to %s: %v", now, err)
	}
	testbed.Must(t, os.WriteFile(record, ours, 0o600))
	b.Start(t)
	grows(t, p.Container)
	p.Remove(t)
	b.NothingLeft(t, atRest)
}
