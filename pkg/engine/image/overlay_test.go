package image

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// A store that is opened without a free inode can still remove root filesystems. It creates
// new ones once inodes are free.
func TestOpenWithoutInodes(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	dir := t.TempDir()
	test.Must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m,nr_inodes=400"))
	t.Cleanup(func() { test.Must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	s := openStore(t, Config{Root: filepath.Join(dir, "images"), HostsDir: reg.hosts(t)})
	img := pullImage(t, s, app)
	_, err := s.PrepareRootfs(t.Context(), "one", img, "", nil)
	test.Must(t, err)
	filler := filepath.Join(dir, "filler")
	test.Must(t, os.Mkdir(filler, 0o700))
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(filler, strconv.Itoa(i)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	s = reopen(t, s)
	test.Must(t, s.RemoveRootfs(t.Context(), "one", ""))
	test.ErrorIs(t, test.Err(os.Stat(s.files.RootfsPath(disk.Overlayfs, "one"))), os.ErrNotExist, "removed root filesystem")
	test.Must(t, os.RemoveAll(filler))
	img = test.Value(s.Get(img.ID))(t)
	fs := test.Value(s.PrepareRootfs(t.Context(), "two", img, "", nil))(t)
	mounted(t, fs.Mounts)

	// Existing root filesystems can also be removed if overlayfs does not work at all.
	test.Must(t, test.Err(s.PrepareRootfs(t.Context(), "three", img, "", nil)))
	l := s.files.Layers[disk.Overlayfs]
	l.Broken = errors.New("no overlayfs")
	test.Fails(t, test.Err(s.PrepareRootfs(t.Context(), "four", img, "", nil)), "a broken snapshotter created a root filesystem")
	test.Must(t, s.RemoveRootfs(t.Context(), "three", ""))
	test.ErrorIs(t, test.Err(os.Stat(s.files.RootfsPath(disk.Overlayfs, "three"))), os.ErrNotExist, "removed root filesystem")
	l.Broken = nil
}

// The directories and the mount of an overlayfs probe whose daemon was killed are removed at the
// next start.
func TestProbeOfAKilledDaemon(t *testing.T) {
	root := filepath.Join(t.TempDir(), "images")
	lower, upper := filepath.Join(root, "probe-1"), filepath.Join(root, "probe-2")
	for _, dir := range []string{"probe-1/lower", "probe-1/merged", "probe-2/upper", "probe-2/work"} {
		test.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	merged := filepath.Join(lower, "merged")
	overlay := mount.Mount{Type: "overlay", Source: "overlay", Options: []string{
		"lowerdir=" + filepath.Join(lower, "lower"), "upperdir=" + filepath.Join(upper, "upper"), "workdir=" + filepath.Join(upper, "work"),
	}}
	test.Must(t, overlay.Mount(merged))
	t.Cleanup(func() { test.Must(t, mount.UnmountAll(merged, unix.MNT_DETACH)) })
	openStore(t, Config{Root: root})
	for _, dir := range []string{lower, upper} {
		test.ErrorIs(t, test.Err(os.Stat(dir)), os.ErrNotExist, "probe directory %s", dir)
	}
}
