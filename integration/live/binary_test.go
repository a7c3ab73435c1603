package live

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// runs returns the version of the kept binary of a pod from its verbose status, and fails unless
// the binary reports the same version.
func (b *bed) runs(t *testing.T, pod *testbed.Pod) string {
	t.Helper()
	r, err := b.Client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.ID, Verbose: true})
	testbed.Must(t, err)
	var info struct {
		Binaries []struct{ Runs, Version string }
	}
	if err := json.Unmarshal([]byte(r.GetInfo()["info"]), &info); err != nil || len(info.Binaries) != 1 {
		t.Fatalf("%v: %s", err, r.GetInfo()["info"])
	}
	binary := info.Binaries[0]
	if says := version(t, binary.Runs); says != binary.Version {
		t.Errorf("%s is version %s, but the pod's status has %s", binary.Runs, says, binary.Version)
	}
	return binary.Version
}

// version is the version that a runc reports.
func version(t *testing.T, runc string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), runc, "--version").Output()
	testbed.Mustf(t, err, "%s --version", runc)
	first, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(first, "runc version ")
}

// When a handler's binary moves to another directory and the configuration follows, its old pods
// keep working, also after a restart of the daemon, and new pods start.
func TestPainAMovedBinaryStrandsPods(t *testing.T) {
	b := newBed(t)
	before, after := filepath.Join(b.Dir, "usr", "runtime"), filepath.Join(b.Dir, "opt", "runtime")
	for _, path := range []string{before, after} {
		testbed.Must(t, os.Mkdir(filepath.Dir(path), 0o755))
	}
	copyFile(t, testbed.Part(t, testbed.Runc), before)
	b.DropIn(t, "own", table("own", before))
	b.waitState(t, "own", "ready")
	old, restarted := b.pod(t, "own"), b.pod(t, "own")
	was := b.waitState(t, "own", "ready").Since

	rename(t, before, after)
	b.DropIn(t, "own", table("own", after))
	testbed.Eventually(t, patience, func() error {
		if _, now := b.status(t); now.of("own").Since == was || now.of("own").State != "ready" {
			return fmt.Errorf("the handler is %+v", now.of("own"))
		}
		return nil
	})
	works(t, b, b.pod(t, "own"))
	works(t, b, old)
	old.Remove(t)
	b.Kill9(t)
	b.Start(t)
	works(t, b, restarted)
	works(t, b, b.pod(t, "own"))
}

// When a handler's binary is replaced by a new release, new pods use the new one. Old pods and
// their new containers keep the old one.
func TestPainAnUpgradedBinaryStrandsPods(t *testing.T) {
	b := newBed(t)
	installed := filepath.Join(b.Dir, "runtime")
	first, second := testbed.Part(t, testbed.RuncOld), testbed.Part(t, testbed.Runc)
	copyFile(t, first, installed)
	b.DropIn(t, "own", table("own", installed))
	b.waitState(t, "own", "ready")
	old, restarted := b.pod(t, "own"), b.pod(t, "own")

	copyFile(t, second, installed)
	testbed.Eventually(t, patience, func() error { return b.pinned(t, old, "old") })
	fresh := b.pod(t, "own")
	testbed.Check(t, b.pinned(t, fresh, "current"))
	is := func(pod *testbed.Pod, runc string) {
		t.Helper()
		testbed.Same(t, b.runs(t, pod), version(t, runc), "the pod runs on runc")
		works(t, b, pod)
	}
	is(old, first)
	is(fresh, second)
	old.Remove(t)
	b.Kill9(t)
	b.Start(t)
	is(restarted, first)
	is(fresh, second)
	is(b.pod(t, "own"), second)
	for pod, want := range map[*testbed.Pod]string{restarted: "old", fresh: "current"} {
		testbed.Check(t, b.pinned(t, pod, want))
	}
}

// pinned returns an error unless "berth pods" lists a pod with a binary that is as wanted.
func (b *bed) pinned(t *testing.T, pod *testbed.Pod, want string) error {
	t.Helper()
	for line := range strings.Lines(b.command(t, "pods")) {
		cells := strings.Fields(line)
		if strings.HasPrefix(pod.ID, cells[0]) && cells[len(cells)-1] == want {
			return nil
		}
	}
	return fmt.Errorf("the binary of pod %s is not %s", pod.ID, want)
}
