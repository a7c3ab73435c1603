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
)

// A store that is opened without a free inode removes root filesystems, and makes
// them again when there is room.
func TestOpenWithoutInodes(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	disk := t.TempDir()
	must(t, unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64m,nr_inodes=400"))
	t.Cleanup(func() { must(t, unix.Unmount(disk, unix.MNT_DETACH)) })
	s := openStore(t, Config{Root: filepath.Join(disk, "images"), HostsDir: reg.hosts(t)})
	img := pullImage(t, s, app)
	_, err := s.PrepareRootfs(t.Context(), "one", img, "")
	must(t, err)
	filler := filepath.Join(disk, "filler")
	must(t, os.Mkdir(filler, 0o700))
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(filler, strconv.Itoa(i)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	s = reopen(t, s)
	must(t, s.RemoveRootfs(t.Context(), "one", ""))
	if _, err := os.Stat(s.files.rootfsPath(Overlayfs, "one")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	must(t, os.RemoveAll(filler))
	img, err = s.Get(img.ID)
	must(t, err)
	fs, err := s.PrepareRootfs(t.Context(), "two", img, "")
	must(t, err)
	mounted(t, fs.Mounts)

	// Where overlayfs does not work at all, what there is can go too.
	_, err = s.PrepareRootfs(t.Context(), "three", img, "")
	must(t, err)
	l := s.files.layers[Overlayfs]
	l.broken = errors.New("no overlayfs")
	if _, err := s.PrepareRootfs(t.Context(), "four", img, ""); err == nil {
		t.Error("a broken snapshotter makes root filesystems")
	}
	must(t, s.RemoveRootfs(t.Context(), "three", ""))
	if _, err := os.Stat(s.files.rootfsPath(Overlayfs, "three")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
	l.broken = nil
}

// What a daemon left that was killed while it found out about overlayfs goes at the next
// start, with its mount.
func TestProbeOfAKilledDaemon(t *testing.T) {
	root := filepath.Join(t.TempDir(), "images")
	lower, upper := filepath.Join(root, "probe-1"), filepath.Join(root, "probe-2")
	for _, dir := range []string{"probe-1/lower", "probe-1/merged", "probe-2/upper", "probe-2/work"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o700))
	}
	merged := filepath.Join(lower, "merged")
	overlay := mount.Mount{Type: "overlay", Source: "overlay", Options: []string{
		"lowerdir=" + filepath.Join(lower, "lower"), "upperdir=" + filepath.Join(upper, "upper"), "workdir=" + filepath.Join(upper, "work"),
	}}
	must(t, overlay.Mount(merged))
	t.Cleanup(func() { must(t, mount.UnmountAll(merged, unix.MNT_DETACH)) })
	openStore(t, Config{Root: root})
	for _, dir := range []string{lower, upper} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
