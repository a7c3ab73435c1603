package cgroups

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/moby/sys/mountinfo"

	"github.com/berth-cri/berth/internal/test"
)

func TestAskedCgroup(t *testing.T) {
	for _, tt := range []struct {
		path    string
		systemd bool
		want    string
	}{
		{"", false, "/id"},
		{"/kubepods/pod1/c", false, "/kubepods/pod1/c"},
		{"kubepods/../c", false, "/c"},
		{"kubepods-pod1.slice:berth:c", true, "/kubepods.slice/kubepods-pod1.slice/berth-c.scope"},
		{"a-b-c.slice:berth:d.slice", true, "/a.slice/a-b.slice/a-b-c.slice/d.slice"},
		{"-.slice:berth:c", true, "/berth-c.scope"},
		{"/no/systemd/path", true, ""},
	} {
		test.Equal(t, fmt.Sprintf("cgroup of the path %q", tt.path), Asked(tt.path, "id", tt.systemd), tt.want)
	}
}

func TestLocateCgroup(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"v2/pod/c", "memory/pod/c", "pids/pod/c", "pids/asked", "freezer/shim"} {
		test.Must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	all := []Hierarchy{
		{Mount: dir + "/v2", root: "/"},
		{Controller: "memory", Mount: dir + "/memory", root: "/"},
		{Controller: "pids", Mount: dir + "/pids", root: "/"},
		{Controller: "freezer", Mount: dir + "/freezer", root: "/"},
	}
	own := map[string]string{"": "/shim", "memory": "/shim", "pids": "/shim", "freezer": "/shim"}
	for _, tt := range []struct {
		name      string
		container map[string]string
		asked     string
		want      Cgroup
	}{
		{"cgroups of the container", map[string]string{"": "/pod/c", "memory": "/pod/c", "pids": "/pod/c"}, "",
			Cgroup{Unified: dir + "/v2/pod/c", Memory: dir + "/memory/pod/c", Pids: dir + "/pids/pod/c"}},
		{"cgroups of the supervisor", own, "", Cgroup{}},
		{"exited container with a path in its spec", map[string]string{"": "/", "memory": "/", "pids": "/", "freezer": "/"}, "/asked",
			Cgroup{Pids: dir + "/pids/asked"}},
		{"missing cgroups", map[string]string{"": "/gone", "memory": "/gone"}, "", Cgroup{}},
		{"cgroup outside of the mount", map[string]string{"memory": "/../x"}, "", Cgroup{}},
	} {
		if got := locateCgroup(all, own, tt.container, tt.asked); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestParseCounter(t *testing.T) {
	text := []byte("low 0\noom 7\noom_kill 3\noom_group_kill x\n")
	for key, want := range map[string]uint64{"oom_kill": 3, "oom": 7, "oom_group_kill": 0, "none": 0} {
		test.Equal(t, key, parseCounter(text, key), want)
	}
}

// TestHierarchiesOfTheNode checks that the mounts below /sys/fs/cgroup are preferred to other
// mounts of the same hierarchies, such as those of CRIU and of containers.
func TestHierarchiesOfTheNode(t *testing.T) {
	v1 := func(at, controllers string) *mountinfo.Info {
		return &mountinfo.Info{FSType: "cgroup", Mountpoint: at, Root: "/", VFSOptions: "rw," + controllers}
	}
	got := hierarchiesOf([]*mountinfo.Info{
		v1("/run/x/.criu.cgyard.Ab12/memory", "memory"),
		v1("/sys/fs/cgroup/memory", "memory"), v1("/sys/fs/cgroup/cpu", "cpu,cpuacct"),
		{FSType: "cgroup2", Mountpoint: "/sys/fs/cgroup/unified", Root: "/"},
		v1("/var/other/memory", "memory"), v1("/var/other/pids", "pids"),
		{FSType: "cgroup2", Mountpoint: "/tmp/x", Root: "/"},
	})
	want := []Hierarchy{
		{"memory", "/sys/fs/cgroup/memory", "/"}, {"", "/sys/fs/cgroup/unified", "/"}, {"pids", "/var/other/pids", "/"},
	}
	test.EqualLists(t, "hierarchies", got, want)
}
