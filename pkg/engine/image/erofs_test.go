package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/plugins/snapshots/erofs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// needErofs skips the test if mkfs.erofs or the kernel's erofs is missing.
func needErofs(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("mkfs.erofs"); err == nil && erofs.FindErofs() {
		return
	}
	if os.Getenv("BERTH_TEST_REQUIRE") != "" {
		t.Fatal("mkfs.erofs (erofs-utils) or the kernel's erofs is missing")
	}
	t.Skip("mkfs.erofs (erofs-utils) or the kernel's erofs is missing")
}

// unmountLayers unmounts the layers, as a reboot does.
func unmountLayers(t *testing.T, root string) {
	t.Helper()
	for _, dir := range test.Value(filepath.Glob(filepath.Join(root, disk.SnapshotsDir, disk.Erofs, "mounts", "*")))(t) {
		test.Must(t, mount.UnmountAll(dir, unix.MNT_DETACH))
	}
}

// allSnapshotters returns the built-in snapshotters that work on this machine.
func allSnapshotters(t *testing.T) []string {
	t.Helper()
	_, err := exec.LookPath("mkfs.erofs")
	if os.Getenv("BERTH_TEST_REQUIRE") == "" && (err != nil || !erofs.FindErofs()) {
		return []string{disk.Native, disk.Overlayfs}
	}
	return disk.SnapshotterNames(nil)
}

// mountedLayers returns the mount points of the snapshotter's layers.
func mountedLayers(t *testing.T, s *Store) []string {
	t.Helper()
	return test.Value(filepath.Glob(filepath.Join(s.Root(), disk.SnapshotsDir, disk.Erofs, "mounts", "*")))(t)
}

func TestErofs(t *testing.T) {
	needErofs(t)
	reg := newTestRegistry(t)
	reg.push(t, "app:1", build(t, v1.Config{},
		layer(t, file{name: "a", body: "lower"}, file{name: "gone", body: "x"}, file{name: "dir/"}, file{name: "dir/hidden", body: "x"}),
		layer(t, file{name: ".wh.gone"}, file{name: "dir/.wh..wh..opq"}, file{name: "dir/seen", body: "upper"}),
		layer(t, file{name: "b", body: "top"}),
	))
	want := map[string]string{"a": "lower", "b": "top", "dir/": "", "dir/seen": "upper"}
	root, hosts := filepath.Join(t.TempDir(), "images"), reg.hosts(t)
	s := openStore(t, Config{Root: root, HostsDir: hosts, DefaultSnapshotter: disk.Erofs})
	t.Cleanup(func() { unmountLayers(t, root) })
	img := pullImage(t, s, app)
	fs := test.Value(s.PrepareRootfs(t.Context(), "c1", img, "", nil))(t)
	dir := t.TempDir()
	test.Must(t, mount.All(fs.Mounts, dir))
	sameTree(t, tree(t, dir), want)
	test.Must(t, os.WriteFile(filepath.Join(dir, "written"), nil, 0o600))
	test.Must(t, mount.UnmountAll(dir, 0))
	if got := len(mountedLayers(t, s)); got != 3 {
		t.Errorf("%d layers are mounted, want 3", got)
	}

	// The same layers are used with overlayfs at the same time.
	other := test.Value(s.PrepareRootfs(t.Context(), "c2", img, disk.Overlayfs, nil))(t)
	test.Must(t, mount.All(other.Mounts, dir))
	sameTree(t, tree(t, dir), want)
	test.Must(t, mount.UnmountAll(dir, 0))

	// A restart after a reboot, which unmounts all layers, mounts them again.
	test.Must(t, s.Close())
	unmountLayers(t, root)
	s = openStore(t, Config{Root: root, HostsDir: hosts, DefaultSnapshotter: disk.Erofs})
	test.Must(t, s.Retain(t.Context(), []containerfs.Use{{Owner: "c1", ChainID: img.ChainID, Snapshotter: disk.Erofs}, {Owner: "c2", ChainID: img.ChainID, Snapshotter: disk.Overlayfs}}))
	again := test.Value(s.PrepareRootfs(t.Context(), "c1", img, disk.Erofs, nil))(t)
	test.Must(t, mount.All(again.Mounts, dir))
	test.Checkf(t, test.Err(os.Stat(filepath.Join(dir, "written"))), "the file that the container wrote")
	test.Must(t, mount.UnmountAll(dir, 0))
	test.Must(t, s.Remove(t.Context(), img.ID))
	test.Must(t, s.RemoveRootfs(t.Context(), "c1", disk.Erofs))
	test.Must(t, s.RemoveRootfs(t.Context(), "c2", disk.Overlayfs))
	<-s.views.Work.Collector.Request()
	if left := mountedLayers(t, s); len(left) > 0 {
		t.Errorf("still mounted: %v", left)
	}
	wantStored(t, s, 0, 0)
}

// While mkfs.erofs converts a layer, which takes long for a large layer, other calls can write to
// the metadata.
func TestErofsKeepsNobodyFromTheMetadata(t *testing.T) {
	needErofs(t)
	mkfs := test.Value(exec.LookPath("mkfs.erofs"))(t)
	bin := t.TempDir()
	started, proceed := filepath.Join(bin, "started"), filepath.Join(bin, "proceed")
	script := "#!/bin/sh\n: > " + started + "\nwhile ! [ -e " + proceed + " ]; do sleep 0.05; done\nexec " + mkfs + ` "$@"` + "\n"
	test.Must(t, os.WriteFile(filepath.Join(bin, "mkfs.erofs"), []byte(script), 0o700)) //nolint:gosec // it is to be run
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	_, s := serve(t, Config{DefaultSnapshotter: disk.Erofs}, build(t, v1.Config{}, layer(t, file{name: "a", body: "of a"})))
	pulled := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), pull.Request{Ref: app})
		pulled <- err
	}()
	test.Eventually(t, "mkfs.erofs has started", func() bool { _, err := os.Stat(started); return err == nil })
	written := make(chan error, 1)
	go func() {
		ctx, lease, err := s.files.Lease(disk.InNamespace(t.Context()), nil)
		if err == nil {
			s.files.EndLease(ctx, lease)
		}
		written <- err
	}()
	select {
	case err := <-written:
		test.Must(t, err)
	case <-time.After(10 * time.Second):
		t.Error("the metadata is locked during mkfs.erofs")
	}
	test.Must(t, os.WriteFile(proceed, nil, 0o600))
	test.Must(t, <-pulled)
	if left, err := filepath.Glob(filepath.Join(s.Root(), disk.SnapshotsDir, disk.Erofs, "snapshots", "*", "fs", "*")); err != nil || len(left) > 0 {
		t.Errorf("the layer's files are left beside its erofs file: %v, %v", left, err)
	}
}
