package image

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
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
	c := unpack.NewChildren(512 << 20)
	defer c.Close()
	first := test.Value(c.Take())(t)
	c.GiveBack(first)
	want(1)
	test.Must(t, syscall.Kill(unpackers()[0], syscall.SIGKILL))
	test.Eventually(t, "the end of the child", func() bool { return !first.Usable() })
	first, second, third := test.Value(c.Take())(t), test.Value(c.Take())(t), test.Value(c.Take())(t)
	if !first.Usable() {
		t.Error("a child that was killed is handed out")
	}
	want(3)
	c.GiveBack(first)
	c.GiveBack(second)
	c.GiveBack(third)
	want(unpack.MaxIdle)
	again := test.Value(c.Take())(t)
	if again != first && again != second {
		t.Error("a child is started although one is idle")
	}
	c.GiveBack(again)
	c.End(first)
	want(1)
	late := test.Value(c.Take())(t)
	c.Close()
	c.GiveBack(late)
	want(0)
}

// Pulls share a child, but for one that failed at a layer.
func TestPullsShareAChild(t *testing.T) {
	reg := newTestRegistry(t)
	bad := static.NewLayer([]byte("no archive"), types.OCILayer)
	reg.push(t, "a:1", layered(t, v1.Config{}))
	reg.push(t, "b:1", build(t, v1.Config{}, layer(t, file{name: "b"})))
	reg.push(t, "bad:1", test.Value(mutate.AppendLayers(build(t, v1.Config{}), bad))(t))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	pullImage(t, s, domain+"/a:1")
	first := unpackers()
	pullImage(t, s, domain+"/b:1")
	if len(first) != 1 || !slices.Equal(unpackers(), first) {
		t.Errorf("children are %v, and then %v", first, unpackers())
	}
	test.Fails(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: domain + "/bad:1"})), "no archive is pulled")
	if len(unpackers()) != 0 {
		t.Error("a child that failed is kept")
	}
}
