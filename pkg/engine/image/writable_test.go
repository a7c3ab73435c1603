package image

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// What containers write can be on a filesystem of its own, which the kubelet is told of.
func TestWritableLayersElsewhere(t *testing.T) {
	dir := smallDisk(t, 16)
	reg, s, img := pulled(t, Config{WritableRoot: dir}, layered(t, v1.Config{}))
	fs := test.Value(s.PrepareRootfs(t.Context(), "c1", img, "", nil))(t)
	if !strings.HasPrefix(fs.Upper, dir+"/") {
		t.Errorf("what it writes is in %s", fs.Upper)
	}
	test.Must(t, os.WriteFile(filepath.Join(mounted(t, fs.Mounts), "written"), make([]byte, 1<<20), 0o600))
	test.Eventually(t, "what it wrote is counted", func() bool {
		bytes, _, path, err := s.Meter.WritableUsage(t.Context(), "c1", "")
		return err == nil && bytes >= 1<<20 && strings.HasPrefix(path, dir+"/")
	})
	info := test.Value(NewService(s).ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{}))(t)
	images, containers := info.GetImageFilesystems()[0], info.GetContainerFilesystems()[0]
	if images.GetFsId().GetMountpoint() != s.Root() || !strings.HasPrefix(containers.GetFsId().GetMountpoint(), dir+"/") ||
		containers.GetUsedBytes().GetValue() < 1<<20 || images.GetUsedBytes().GetValue() >= 1<<20 {
		t.Errorf("%v", info)
	}

	// What a snapshotter keeps with its layers is not on that filesystem.
	fs = test.Value(s.PrepareRootfs(t.Context(), "c2", img, disk.Native, nil))(t)
	test.Must(t, os.WriteFile(filepath.Join(mounted(t, fs.Mounts), "written"), make([]byte, 2<<20), 0o600))
	test.Eventually(t, "what it wrote is counted", func() bool {
		bytes, _, path, err := s.Meter.WritableUsage(t.Context(), "c2", disk.Native)
		return err == nil && bytes >= 2<<20 && strings.HasPrefix(path, s.Root()+"/")
	})
	info = test.Value(NewService(s).ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{}))(t)
	images, containers = info.GetImageFilesystems()[0], info.GetContainerFilesystems()[0]
	if images.GetUsedBytes().GetValue() < 2<<20 || containers.GetUsedBytes().GetValue() >= 2<<20 {
		t.Errorf("%v", info)
	}
	test.Must(t, s.RemoveRootfs(t.Context(), "c2", disk.Native))

	// Another store that writes there is left alone.
	other := openStore(t, Config{HostsDir: reg.hosts(t), WritableRoot: dir})
	test.Must(t, other.Retain(t.Context(), nil))
	s = reopen(t, s)
	test.Must(t, s.Retain(t.Context(), []containerfs.Use{{Owner: "c1", ChainID: img.ChainID}}))
	if !hasRootfs(t, s, "c1", "") {
		t.Error("the root filesystem is gone")
	}
	test.Must(t, s.RemoveRootfs(t.Context(), "c1", ""))
	test.Eventually(t, "what it wrote is gone", func() bool {
		left, err := filepath.Glob(filepath.Join(dir, "*", "*", "*c1*"))
		return err == nil && len(left) == 0
	})
}

// Images and writable layers that are on one filesystem have one usage.
func TestOneFilesystemIsReportedOnce(t *testing.T) {
	for _, c := range []Config{{}, {WritableRoot: t.TempDir()}} {
		info := test.Value(NewService(openStore(t, c)).ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{}))(t)
		if images, containers := info.GetImageFilesystems(), info.GetContainerFilesystems(); len(images) != 1 || len(containers) != 1 || !proto.Equal(images[0], containers[0]) {
			t.Errorf("images are on %v, containers on %v", images, containers)
		}
	}
}
