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

// Writable layers can be on another filesystem than images. ImageFsInfo reports both filesystems.
func TestWritableLayersElsewhere(t *testing.T) {
	dir := smallDisk(t, 16)
	reg, s, img := pulled(t, Config{WritableRoot: dir}, layered(t, v1.Config{}))
	fs := test.Value(s.PrepareRootfs(t.Context(), "c1", img, "", nil))(t)
	if !strings.HasPrefix(fs.Upper, dir+"/") {
		t.Errorf("the writable layer is %s, want it below %s", fs.Upper, dir)
	}
	test.Must(t, os.WriteFile(filepath.Join(mounted(t, fs.Mounts), "written"), make([]byte, 1<<20), 0o600))
	test.Eventually(t, "the written bytes are counted", func() bool {
		bytes, _, path, err := s.Meter.WritableUsage(t.Context(), "c1", "")
		return err == nil && bytes >= 1<<20 && strings.HasPrefix(path, dir+"/")
	})
	info := test.Value(NewService(s).ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{}))(t)
	images, containers := info.GetImageFilesystems()[0], info.GetContainerFilesystems()[0]
	if images.GetFsId().GetMountpoint() != s.Root() || !strings.HasPrefix(containers.GetFsId().GetMountpoint(), dir+"/") ||
		containers.GetUsedBytes().GetValue() < 1<<20 || images.GetUsedBytes().GetValue() >= 1<<20 {
		t.Errorf("with a writable layer of 1 MiB ImageFsInfo is %v", info)
	}

	// The native snapshotter keeps writable layers with its other layers, on the images'
	// filesystem.
	fs = test.Value(s.PrepareRootfs(t.Context(), "c2", img, disk.Native, nil))(t)
	test.Must(t, os.WriteFile(filepath.Join(mounted(t, fs.Mounts), "written"), make([]byte, 2<<20), 0o600))
	test.Eventually(t, "the written bytes are counted", func() bool {
		bytes, _, path, err := s.Meter.WritableUsage(t.Context(), "c2", disk.Native)
		return err == nil && bytes >= 2<<20 && strings.HasPrefix(path, s.Root()+"/")
	})
	info = test.Value(NewService(s).ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{}))(t)
	images, containers = info.GetImageFilesystems()[0], info.GetContainerFilesystems()[0]
	if images.GetUsedBytes().GetValue() < 2<<20 || containers.GetUsedBytes().GetValue() >= 2<<20 {
		t.Errorf("with 2 MiB in a native snapshot ImageFsInfo is %v", info)
	}
	test.Must(t, s.RemoveRootfs(t.Context(), "c2", disk.Native))

	// Retain of another store with the same WritableRoot does not remove this store's containers.
	other := openStore(t, Config{HostsDir: reg.hosts(t), WritableRoot: dir})
	test.Must(t, other.Retain(t.Context(), nil))
	s = reopen(t, s)
	test.Must(t, s.Retain(t.Context(), []containerfs.Use{{Owner: "c1", ChainID: img.ChainID}}))
	if !hasRootfs(t, s, "c1", "") {
		t.Error("Retain removed the root filesystem of c1")
	}
	test.Must(t, s.RemoveRootfs(t.Context(), "c1", ""))
	test.Eventually(t, "the removed writable layer is deleted", func() bool {
		left, err := filepath.Glob(filepath.Join(dir, "*", "*", "*c1*"))
		return err == nil && len(left) == 0
	})
}

// Images and writable layers that are on one filesystem are reported with the same usage.
func TestOneFilesystemIsReportedOnce(t *testing.T) {
	for _, c := range []Config{{}, {WritableRoot: t.TempDir()}} {
		info := test.Value(NewService(openStore(t, c)).ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{}))(t)
		if images, containers := info.GetImageFilesystems(), info.GetContainerFilesystems(); len(images) != 1 || len(containers) != 1 || !proto.Equal(images[0], containers[0]) {
			t.Errorf("images are on %v, containers on %v", images, containers)
		}
	}
}
