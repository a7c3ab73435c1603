package remote

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
)

func pulled(t *testing.T, b *Backend, names ...string) {
	t.Helper()
	for _, name := range names {
		test.Must(t, test.Err(b.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})))
	}
}

// has checks the images of a backend, and that ImageFsInfo returns their file system.
func has(t *testing.T, b *Backend, want ...string) {
	t.Helper()
	var got []string
	l, err := b.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	test.Check(t, err)
	read := &runtimeapi.ListImagesResponse{}
	test.Check(t, proto.Unmarshal(l.ProtoReflect().GetUnknown(), read))
	for _, i := range read.GetImages() {
		got = append(got, i.GetId())
	}
	slices.Sort(got)
	test.EqualLists(t, "images", got, want)
	fs, err := b.ImageFsInfo(t.Context(), &runtimeapi.ImageFsInfoRequest{})
	if err != nil || fs.GetImageFilesystems()[0].GetFsId().GetMountpoint() != "other" {
		t.Errorf("the file systems are %v, %v", fs, err)
	}
}

func TestImagesOfADaemonThatGoesAway(t *testing.T) {
	d := newDaemon(t)
	dir := t.TempDir()
	b := connect(t, d, dir)
	isReady(t, b)
	pulled(t, b, "one", "three", "two")
	has(t, b, "one", "three", "two")
	remove := func(name string) error {
		_, err := b.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		return err
	}
	test.Check(t, remove("three"))
	d.server.Stop()
	has(t, b, "one", "two")
	test.Eventually(t, "down", func() bool { return b.Health().Phase == Down })
	has(t, b, "one", "two") // without the image that was removed after the list
	if err := remove("one"); status.Code(err) != codes.Unavailable {
		t.Errorf("RemoveImage at a stopped daemon: %v", err)
	}
	// A list with a filter is not answered from the last known images.
	_, err := b.ListImages(t.Context(), &runtimeapi.ListImagesRequest{Filter: &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: "one"}}})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a filtered list of a stopped daemon: %v", err)
	}
	has(t, connect(t, d, dir), "one", "two")
	test.Check(t, b.state.Close(true))
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

func TestImagesOfADaemonThatHangs(t *testing.T) {
	fail, hang, let := hung()
	b := connect(t, newDaemonThat(t, fail), t.TempDir())
	isReady(t, b)
	pulled(t, b, "one")
	has(t, b, "one")
	hang()
	has(t, b, "one")
	let()
	has(t, b, "one")
}

// The last known images stay listed: the kubelet forgets the pull secrets of all others.
func TestImagesOfADaemonThatFailsToList(t *testing.T) {
	var broken atomic.Bool
	d := newDaemonThat(t, func(_ context.Context, rpc string) error {
		if broken.Load() && strings.HasSuffix(rpc, "Images") {
			return status.Error(codes.Internal, "disk")
		}
		return nil
	})
	b := ready(t, d)
	broken.Store(true)
	if _, err := b.ListImages(t.Context(), &runtimeapi.ListImagesRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("the first list failed, but the result is %v", err)
	}
	broken.Store(false)
	pulled(t, b, "one")
	has(t, b, "one")
	broken.Store(true)
	has(t, b, "one")
}

// opened opens a state file, which must not be damaged.
func opened(t *testing.T, path string) *lastknown.File {
	t.Helper()
	test.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
	s, damage, err := lastknown.Open(path)
	test.Must(t, errors.Join(damage, err))
	return s
}
