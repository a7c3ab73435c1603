package image

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// unpackers are the children of this process that unpack layers.
func unpackers() []int {
	return slices.DeleteFunc(procfs.Children(os.Getpid()), func(pid int) bool {
		args, _ := os.ReadFile(procfs.Path(pid, "cmdline"))
		return !strings.HasPrefix(string(args), "berth-unpack\x00")
	})
}

// One child stays between layers, and none when no more come. One that the node has
// killed gets no layer.
func TestChildrenOfAPull(t *testing.T) {
	want := func(n int) {
		t.Helper()
		test.Eventually(t, "children", func() bool { return len(unpackers()) == n })
	}
	a := &applier{memory: 512 << 20}
	a.done(test.Value(a.child())(t))
	want(1)
	test.Must(t, syscall.Kill(unpackers()[0], syscall.SIGKILL))
	test.Eventually(t, "the end of the child", func() bool { return !a.idle.Usable() })
	first, second := test.Value(a.child())(t), test.Value(a.child())(t)
	if !first.Usable() {
		t.Error("a child that was killed is handed out")
	}
	want(2)
	a.done(first)
	a.done(second)
	want(1)
	late := test.Value(a.child())(t)
	a.close()
	a.done(late)
	want(0)
}
