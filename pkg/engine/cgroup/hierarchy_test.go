package cgroup

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestParseMounts(t *testing.T) {
	tests := map[string]struct {
		text    string
		unified string
		v1      string // names, sorted
	}{
		"unified": {
			"25 30 0:23 / /sys rw - sysfs sysfs rw\n" +
				"35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n",
			"/sys/fs/cgroup", "",
		},
		"hybrid": {
			"32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n" +
				"33 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/x,name=systemd\n" +
				"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			"", "cpu cpuacct memory name=systemd unified",
		},
		"partial and repeated mounts": {
			"33 31 0:29 /docker/x /mnt/part rw - cgroup cgroup rw,memory\n" +
				"34 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"35 31 0:29 / /elsewhere rw - cgroup cgroup rw,memory\n",
			"", "memory",
		},
		"none": {"25 30 0:23 / /sys rw - sysfs sysfs rw\nshort line\n\n", "", ""},
	}
	for name, tc := range tests {
		h := parseMounts(strings.NewReader(tc.text))
		names := strings.Join(slices.Sorted(maps.Keys(h.v1)), " ")
		if h.unified != tc.unified || names != tc.v1 {
			t.Errorf("%s: unified %q, v1 %q", name, h.unified, names)
		}
		if dir := h.v1["memory"]; dir != "" && dir != "/sys/fs/cgroup/memory" {
			t.Errorf("%s: memory is at %s", name, dir)
		}
	}
}

func TestControllersUnified(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"cgroup.controllers": "cpuset cpu io memory hugetlb pids\n"})
	h := hierarchies{unified: root}
	none := filepath.Join(root, "none")
	s := h.controllers(none)
	test.Equal(t, "names", strings.Join(s.names, " "), "cpu cpuset hugetlb io memory pids")
	if !s.HasHugetlb() || s.HasSwap() || s.Has("rdma") {
		t.Errorf("controllers are %+v", s)
	}
	write(t, filepath.Join(root, "system.slice"), map[string]string{"memory.swap.max": "max\n"})
	if !h.controllers(none).HasSwap() {
		t.Error("swap is not seen in a child")
	}
	own := filepath.Join(root, "own")
	test.Must(t, os.WriteFile(own, []byte("0::/system.slice\n"), 0o600))
	if !h.controllers(own).HasSwap() {
		t.Error("swap is not seen in the daemon's own cgroup")
	}
}

// The hierarchy found is the one in /proc/self/cgroup, with the controllers that berth needs.
func TestControllersOfThisMachine(t *testing.T) {
	b := test.Value(os.ReadFile("/proc/self/cgroup"))(t)
	unified := strings.TrimSpace(string(b)) == strings.TrimSpace(strings.Split(string(b), "\n")[0]) && strings.HasPrefix(string(b), "0::")
	if got := host().unified != ""; got != unified {
		t.Errorf("found a unified hierarchy: %v; /proc/self/cgroup has:\n%s", got, b)
	}
	for _, name := range []string{"cpu", "memory", "pids"} {
		if !Controllers().Has(name) {
			t.Errorf("no controller %s, only %v", name, Controllers().names)
		}
	}
}

// write creates a directory and files in it.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	test.Must(t, os.MkdirAll(dir, 0o755))
	for name, text := range files {
		test.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}
