package runsc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

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
	for id, sandbox := range map[string]string{"gone": "pod", "here": "pod", "pod": "pod", "unknown": "unknown"} {
		if got := LocksOf(root, id, ""); got.sandbox != sandbox {
			t.Errorf("the sandbox of %s is %q, want %q", id, got.sandbox, sandbox)
		}
	}
	LocksOf(root, "gone", "").SweepEnded() // does nothing, because the sandbox exists
	if got := names(t, root); len(got) != 6 {
		t.Errorf("SweepEnded left %v, want all 6 files", got)
	}
	LocksOf(root, "gone", "").Sweep()
	want := []string{"else_sandbox:other.lock", "here_sandbox:pod.lock", "here_sandbox:pod.state", "pod_sandbox:pod.lock", "pod_sandbox:pod.state"}
	test.EqualLists(t, "files after Sweep", names(t, root), want)
}

// TestLocksOfAnEndedSandboxAreSwept covers a member whose delete had removed its own lock, and then
// failed because the sandbox was deleted at the same time.
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
	LocksOf(root, "gone", bundle).SweepEnded()
	test.EqualLists(t, "files after SweepEnded", names(t, root), []string{"else_sandbox:other.lock", "else_sandbox:other.state"})
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

func TestStats(t *testing.T) {
	const out = "warning\n" + `{"data": {"cpu": {"usage": {"total": 7}}, "memory": {"usage": {"usage": 8, "limit": 9}, "raw": {}}, "pids": {"current": 2}}}`
	got := test.Value(Stats([]byte(out)))(t)
	memory := got.GetMemory().GetUsage()
	if got.GetCPU().GetUsage().GetTotal() != 7 || memory.GetUsage() != 8 || memory.GetLimit() != 9 || got.GetPids().GetCurrent() != 2 {
		t.Errorf("the stats are %v", got)
	}
}
