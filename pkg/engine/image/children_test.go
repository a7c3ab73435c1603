package image

import (
	"os"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// unpackers returns the children of this process that unpack layers.
func unpackers() []int {
	return slices.DeleteFunc(procfs.Children(os.Getpid()), func(pid int) bool {
		args, _ := os.ReadFile(procfs.Path(pid, "cmdline"))
		return !strings.HasPrefix(string(args), "berth-unpack\x00")
	})
}

// Pulls share one unpacking child. A child that failed at a layer is not kept.
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
		t.Errorf("the unpacking children are %v after one pull and %v after two, want the same one", first, unpackers())
	}
	test.Fails(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: domain + "/bad:1"})), "the pull of a broken layer succeeded")
	if len(unpackers()) != 0 {
		t.Error("the child that failed was kept")
	}
}
