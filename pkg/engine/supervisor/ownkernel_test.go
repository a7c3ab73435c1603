package supervisor

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestLocksOfDeletedContainersAreSwept(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{
		"pod_sandbox:pod.lock", "pod_sandbox:pod.state",
		"gone_sandbox:pod.lock",
		"here_sandbox:pod.lock", "here_sandbox:pod.state",
		"else_sandbox:other.lock",
	} {
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	options := &Options{OwnKernel: true, Root: root}
	for id, sandbox := range map[string]string{"gone": "pod", "here": "pod", "pod": "pod", "unknown": "unknown"} {
		if got := locksOf(options, id); got.sandbox != sandbox {
			t.Errorf("the sandbox of %s is %q, want %q", id, got.sandbox, sandbox)
		}
	}
	locksOf(&Options{Root: root}, "gone").sweep() // a runtime on this kernel has none
	if got := names(t, root); len(got) != 6 {
		t.Errorf("there are %v", got)
	}
	locksOf(options, "gone").sweep()
	want := []string{"else_sandbox:other.lock", "here_sandbox:pod.lock", "here_sandbox:pod.state", "pod_sandbox:pod.lock", "pod_sandbox:pod.state"}
	if got := names(t, root); !slices.Equal(got, want) {
		t.Errorf("there are %v, want %v", got, want)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
