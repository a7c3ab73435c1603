package cgroup

import (
	"testing"

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
		if got := c.h.memoryOf(procfs.ParseCgroups([]byte(c.text))); got != c.want {
			t.Errorf("%q: %q, want %q", c.text, got, c.want)
		}
	}
}

func TestContains(t *testing.T) {
	p := Paths{V1: map[string]string{"memory": "/m/pods/a", "cpu": "/c/pods/a"}}
	for key, want := range map[string]bool{
		"/m/pods/a": true, "/m/pods/a/b/c": true, "/m/pods/ab": false, "/m/pods": false, "/c/pods/a": false, "": false,
	} {
		if got := p.Contains(key); got != want {
			t.Errorf("%q: %v", key, got)
		}
	}
	if (Paths{}).Contains("") || (Paths{}).Contains("/") {
		t.Error("no cgroup contains something")
	}
	if got := p.child("x").memoryDir(); got != "/m/pods/a/x" {
		t.Errorf("the child is %q", got)
	}
	if got := (Paths{Unified: "/u/a"}).child("x").MemoryKey(); got != "/u/a/x" {
		t.Errorf("the child is %q", got)
	}
}
