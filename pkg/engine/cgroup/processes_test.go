package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// Processes are found in the cgroup and in its children at any depth, each once, on v1 and v2. A
// directory is read whole even if it has more processes than one read returns.
func TestProcesses(t *testing.T) {
	const many = 6000
	var lines strings.Builder
	want := []int{7, 8, 9}
	for pid := 100; pid < 100+many; pid++ {
		want = append(want, pid)
		lines.WriteString(strconv.Itoa(pid) + "\n")
	}
	top := t.TempDir()
	for path, content := range map[string]string{
		"freezer/pod": "", "freezer/pod/a": "9\n", "freezer/pod/b.scope": "", "freezer/pod/b.scope/deep": lines.String() + "7\n8\n0\n9\n",
		"freezer/other": "1\n", "pids/pod": "2\n",
	} {
		dir := filepath.Join(top, path)
		test.Must(t, os.MkdirAll(dir, 0o755))
		test.Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(content), 0o600))
		test.Must(t, os.WriteFile(filepath.Join(dir, "tasks"), nil, 0o600))
	}
	mounts := map[string]string{"pids": top + "/pids", "freezer": top + "/freezer", "devices": top + "/devices"}
	for name, h := range map[string]hierarchies{"v1": {v1: mounts}, "v2": {unified: top + "/freezer"}} {
		if got, err := h.paths("/pod").Processes(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %d processes, %v, want %d", name, len(got), err, len(want))
		}
		if got, err := h.paths("/gone").Processes(); err != nil || len(got) > 0 {
			t.Errorf("%s: a cgroup that is gone has the processes %v, %v", name, got, err)
		}
	}
	test.Must(t, os.WriteFile(filepath.Join(top, "freezer/pod/a/cgroup.procs"), []byte("x\n"), 0o600))
	if got, err := (hierarchies{unified: top + "/freezer"}).paths("/pod").Processes(); err == nil {
		t.Errorf("a process id that is not a number gave %v", got)
	}
}
