package unpack

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// unpackers returns the children of this process that unpack layers.
func unpackers() []int {
	return slices.DeleteFunc(procfs.Children(os.Getpid()), func(pid int) bool {
		args, _ := os.ReadFile(procfs.Path(pid, "cmdline"))
		return !strings.HasPrefix(string(args), "berth-unpack\x00")
	})
}

// Idle children are kept for the next layer, up to maxIdle. A child that was killed gets no layer.
func TestChildren(t *testing.T) {
	want := func(n int) {
		t.Helper()
		test.Eventually(t, fmt.Sprintf("there are %d children", n), func() bool { return len(unpackers()) == n })
	}
	c := newChildren(512 << 20)
	defer c.close()
	first := test.Value(c.take())(t)
	c.giveBack(first)
	want(1)
	test.Must(t, syscall.Kill(unpackers()[0], syscall.SIGKILL))
	test.Eventually(t, "the child has exited", func() bool { return !first.Usable() })
	first, second, third := test.Value(c.take())(t), test.Value(c.take())(t), test.Value(c.take())(t)
	if !first.Usable() {
		t.Error("take returned a child that was killed")
	}
	want(3)
	c.giveBack(first)
	c.giveBack(second)
	c.giveBack(third)
	want(maxIdle)
	again := test.Value(c.take())(t)
	if again != first && again != second {
		t.Error("take started a child although one is idle")
	}
	c.giveBack(again)
	c.end(first)
	want(1)
	late := test.Value(c.take())(t)
	c.close()
	c.giveBack(late)
	want(0)
}
