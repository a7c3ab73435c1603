package image

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/layerproc"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// unpackers are the children of this process that unpack layers.
func unpackers() []int {
	return slices.DeleteFunc(procfs.Children(os.Getpid()), func(pid int) bool {
		args, _ := os.ReadFile(procfs.Path(pid, "cmdline"))
		return !strings.HasPrefix(string(args), "berth-unpack\x00")
	})
}

// One child is there before the first layer, two stay between layers, and none when no
// more layers come. One that the node has killed gets no layer.
func TestChildrenOfAPull(t *testing.T) {
	want := func(n int) {
		t.Helper()
		test.Eventually(t, "children", func() bool { return len(unpackers()) == n })
	}
	a := &applier{memory: 512 << 20}
	a.ready()
	want(1)
	test.Must(t, syscall.Kill(unpackers()[0], syscall.SIGKILL))
	test.Eventually(t, "the end of the child", func() bool { return !a.idle[0].Usable() })
	var all []*layerproc.Process
	for range 3 {
		child := test.Value(a.child())(t)
		if !child.Usable() {
			t.Error("a child that was killed is handed out")
		}
		all = append(all, child)
	}
	want(3)
	for _, child := range all {
		a.done(child)
	}
	want(maxIdle)
	a.close()
	want(0)
	a.ready()
	want(0)
}
