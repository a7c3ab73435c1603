package cgroup

import (
	"fmt"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

func TestMemoryOf(t *testing.T) {
	v1 := hierarchies{v1: map[string]string{"memory": "/sys/fs/cgroup/memory", "unified": "/sys/fs/cgroup/unified"}}
	v2 := hierarchies{unified: "/sys/fs/cgroup"}
	for _, c := range []struct {
		h    hierarchies
		text string
		want string
	}{
		{v1, "6:freezer:/x\n4:memory:/pods/a\n0::/y\n", "/sys/fs/cgroup/memory/pods/a"},
		{v1, "4:hugetlb,memory:/pods/a:b\n", "/sys/fs/cgroup/memory/pods/a:b"},
		{v1, "4:memory:/\n", "/sys/fs/cgroup/memory"},
		{v1, "0::/y\n", ""},
		{v1, "", ""},
		{v2, "0::/pods/a\n", "/sys/fs/cgroup/pods/a"},
		{v2, "4:memory:/x\n0::/pods/a\n", "/sys/fs/cgroup/pods/a"},
		{hierarchies{}, "4:memory:/x\n0::/y\n", ""},
	} {
		test.Equal(t, fmt.Sprintf("%q", c.text), c.h.memoryOf(procfs.ParseCgroups([]byte(c.text))), c.want)
	}
}

func TestContains(t *testing.T) {
	p := Paths{V1: map[string]string{"memory": "/m/pods/a", "cpu": "/c/pods/a"}}
	for key, want := range map[string]bool{
		"/m/pods/a": true, "/m/pods/a/b/c": true, "/m/pods/ab": false, "/m/pods": false, "/c/pods/a": false, "": false,
	} {
		test.Equal(t, fmt.Sprintf("%q", key), p.Contains(key), want)
	}
	if (Paths{}).Contains("") || (Paths{}).Contains("/") {
		t.Error("empty Paths contain a cgroup")
	}
	test.Equal(t, "key of the child", p.below("/x").MemoryKey(), "/m/pods/a/x")
	test.Equal(t, "key of the child", (Paths{Unified: "/u/a"}).below("/x").MemoryKey(), "/u/a/x")
}
