package unpack

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

// Children stay for a while when they have unpacked a layer. One that the node has killed
// gets no layer.
func TestChildren(t *testing.T) {
	want := func(n int) {
		t.Helper()
		test.Eventually(t, "children", func() bool { return len(unpackers()) == n })
	}
	c := newChildren(512 << 20)
	defer c.close()
	first := test.Value(c.take())(t)
	c.giveBack(first)
	want(1)
	test.Must(t, syscall.Kill(unpackers()[0], syscall.SIGKILL))
	test.Eventually(t, "the end of the child", func() bool { return !first.Usable() })
	first, second, third := test.Value(c.take())(t), test.Value(c.take())(t), test.Value(c.take())(t)
	if !first.Usable() {
		t.Error("a child that was killed is handed out")
	}
	want(3)
	c.giveBack(first)
	c.giveBack(second)
	c.giveBack(third)
	want(maxIdle)
	again := test.Value(c.take())(t)
	if again != first && again != second {
		t.Error("a child is started although one is idle")
	}
	c.giveBack(again)
	c.end(first)
	want(1)
	late := test.Value(c.take())(t)
	c.close()
	c.giveBack(late)
	want(0)
}
