package image

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimespec "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/idmap"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

func TestRootfsWritesNoDatabase(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	test.Must(t, s.Retain(t.Context(), nil))
	img := pullImage(t, s, app)
	<-s.views.Work.Collector.Request()
	<-s.views.Work.Counter.Request()
	before := writes(t, s)
	snapshotsBefore := test.Value(os.ReadFile(s.files.Path(disk.SnapshotsDir, disk.Overlayfs, "metadata.db")))(t)
	for i := range 20 {
		id := fmt.Sprintf("c%d", i)
		test.Must(t, test.Err(s.PrepareRootfs(t.Context(), id, img, "", nil)))
		test.Must(t, s.RemoveRootfs(t.Context(), id, ""))
	}
	if n := writes(t, s) - before; n != 0 {
		t.Errorf("20 root filesystems needed %d write transactions", n)
	}
	snapshotsAfter := test.Value(os.ReadFile(s.files.Path(disk.SnapshotsDir, disk.Overlayfs, "metadata.db")))(t)
	if !bytes.Equal(snapshotsBefore, snapshotsAfter) {
		t.Error("the snapshotter's database changed")
	}
}

func TestPrepareRootfsIsIdempotent(t *testing.T) {
	for _, snapshotter := range allSnapshotters(t) {
		_, s, img := pulled(t, Config{}, layered(t, v1.Config{}))
		first := test.Value(s.PrepareRootfs(t.Context(), "c1", img, snapshotter, nil))(t)
		dir := mounted(t, first.Mounts)
		test.Must(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("data"), 0o600))
		second := test.Value(s.PrepareRootfs(t.Context(), "c1", img, snapshotter, nil))(t)
		if fmt.Sprint(first) != fmt.Sprint(second) {
			t.Errorf("%s: the second call returned %+v, want %+v", snapshotter, second, first)
		}
		test.Equal(t, fmt.Sprintf("%s: the container's file after the second call", snapshotter), test.File(t, filepath.Join(dir, "mine")), "data")
	}
}

func TestRootfsOnAnotherSnapshotter(t *testing.T) {
	reg, s := serve(t, Config{}, layered(t, v1.Config{}))
	test.Must(t, s.Retain(t.Context(), nil))
	img := pullImage(t, s, app)
	reg.forgetHits()
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			id := fmt.Sprintf("c%d", i)
			root, err := s.PrepareRootfs(t.Context(), id, img, disk.Native, nil)
			if err != nil {
				t.Error(err)
				return
			}
			dir := mounted(t, root.Mounts)
			sameTree(t, tree(t, dir), layeredTree)
			test.Check(t, os.WriteFile(filepath.Join(dir, id), nil, 0o600))
			if root.Upper != "" || root.Snapshotter != disk.Native {
				t.Errorf("the root filesystem is %+v", root)
			}
		})
	}
	wg.Wait()
	if n := reg.count("", ""); n != 0 {
		t.Errorf("unpacking stored layers sent requests to the registry: %v", reg.hits)
	}
	for i := range 3 {
		test.Must(t, s.RemoveRootfs(t.Context(), fmt.Sprintf("c%d", i), disk.Native))
	}
	// Seven snapshots: three layers in each snapshotter, and overlayfs's view.
	wantStored(t, s, 5, 7)
	if leasesLeft(t, s) != 0 {
		t.Error("leases are left")
	}
}

func TestVolumeIsReadOnly(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "many:1", layered(t, v1.Config{}))
	reg.push(t, "one:1", small(t))
	for _, snapshotter := range allSnapshotters(t) {
		s := openStore(t, Config{HostsDir: reg.hosts(t)})
		for _, ref := range []string{"/many:1", "/one:1"} {
			img := pullImage(t, s, domain+ref)
			mounts := test.Value(s.PrepareVolume(t.Context(), "c1", img, snapshotter))(t)
			dir := mounted(t, mounts)
			if len(tree(t, dir)) == 0 {
				t.Errorf("%s %s: empty volume", snapshotter, ref)
			}
			test.Fails(t, os.WriteFile(filepath.Join(dir, "w"), nil, 0o600), "%s %s: volume is writable", snapshotter, ref)
			if snapshotter != disk.Overlayfs {
				continue // native volumes are copies, and erofs layers are read-only filesystems
			}
			_ = unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, "")
			_ = unix.Mount("", dir, "", unix.MS_REMOUNT, "")
			test.Fails(t, os.WriteFile(filepath.Join(dir, "w"), nil, 0o600), "%s %s: volume can be made writable", snapshotter, ref)
		}
	}
}

func TestVolumeOfMappedUsers(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "many:1", layered(t, v1.Config{}))
	reg.push(t, "one:1", build(t, v1.Config{}, layer(t, file{name: "f", body: "x"})))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	userns := mappedTo(t, 200_000)
	for _, ref := range []string{"/many:1", "/one:1"} {
		for _, snapshotter := range allSnapshotters(t) {
			mounts := test.Value(s.PrepareVolume(t.Context(), "c1", pullImage(t, s, domain+ref), snapshotter))(t)
			dir := t.TempDir()
			test.Must(t, idmap.Mount(userns, mounts, dir, filepath.Join(t.TempDir(), "scratch")))
			t.Cleanup(func() { test.Must(t, mount.UnmountAll(dir, 0)) })
			entries := test.Value(os.ReadDir(dir))(t)
			for _, e := range entries {
				info := test.Value(e.Info())(t)
				if st := info.Sys().(*syscall.Stat_t); st.Uid < 200_000 || st.Gid < 200_000 {
					t.Errorf("%s %s: %s is owned by %d:%d, want at least 200000", snapshotter, ref, e.Name(), st.Uid, st.Gid)
				}
			}
			test.Fails(t, os.WriteFile(filepath.Join(dir, "w"), nil, 0o600), "%s %s: volume is writable", snapshotter, ref)
		}
	}
}

// mappedTo creates a user namespace whose IDs begin at host, and returns its path.
func mappedTo(t *testing.T, host uint32) string {
	t.Helper()
	ids := runtimespec.LinuxIDMapping{HostID: host, Size: 65_536}
	dir := filepath.Join(t.TempDir(), "ns")
	ns := test.Value(namespaces.Create(t.Context(), namespaces.Request{Dir: dir, User: &namespaces.User{UIDs: ids, GIDs: ids}}))(t)
	t.Cleanup(func() { test.Check(t, namespaces.Release(dir)) })
	return ns.User
}

func TestRetainRemovesOrphans(t *testing.T) {
	_, s, img := pulled(t, Config{}, layered(t, v1.Config{}))
	for _, snapshotter := range allSnapshotters(t) {
		for _, id := range []string{"kept", "orphan"} {
			test.Must(t, test.Err(s.PrepareRootfs(t.Context(), id+snapshotter, img, snapshotter, nil)))
			volumes := test.Value(s.MakeVolumes(id+snapshotter, snapshotter))(t)
			test.Must(t, os.WriteFile(filepath.Join(volumes, "file"), make([]byte, 1<<20), 0o600))
		}
	}
	s = reopen(t, s)
	var uses []containerfs.Use
	for _, snapshotter := range allSnapshotters(t) {
		uses = append(uses, containerfs.Use{Owner: "kept" + snapshotter, ChainID: img.ChainID, Snapshotter: snapshotter})
	}
	test.Must(t, s.Retain(t.Context(), uses))
	for _, u := range uses {
		for id, want := range map[string]bool{u.Owner: true, strings.Replace(u.Owner, "kept", "orphan", 1): false} {
			_, err := os.Stat(filepath.Join(s.files.VolumesPath(u.Snapshotter, id), "file"))
			if hasRootfs(t, s, id, u.Snapshotter) != want || (err == nil) != want {
				t.Errorf("%s: root filesystem: %v; volumes: %v; want both: %v", id, hasRootfs(t, s, id, u.Snapshotter), err, want)
			}
		}
	}
	// Three layers in each snapshotter, a view in all but native, and the native container's
	// snapshot.
	n := len(allSnapshotters(t))
	wantStored(t, s, 5, 3*n+n-1+1)
	test.Eventually(t, "the trash is emptied", func() bool {
		left, _ := os.ReadDir(s.files.Path(disk.TrashDir))
		return len(left) == 0
	})
}

// Volumes count as the container's writable usage, and are removed with its root filesystem.
func TestVolumesOfContainers(t *testing.T) {
	_, s, img := pulled(t, Config{}, layered(t, v1.Config{}))
	for _, snapshotter := range allSnapshotters(t) {
		test.Must(t, test.Err(s.PrepareRootfs(t.Context(), "c1", img, snapshotter, nil)))
		volumes := test.Value(s.MakeVolumes("c1", snapshotter))(t)
		test.Must(t, os.WriteFile(filepath.Join(volumes, "file"), bytes.Repeat([]byte("x"), 3<<20), 0o600))
		test.Eventually(t, "the volumes are counted", func() bool {
			n, _, _, err := s.Meter.WritableUsage(t.Context(), "c1", snapshotter)
			return err == nil && n >= 3<<20
		})
		test.Must(t, s.RemoveRootfs(t.Context(), "c1", snapshotter))
		test.ErrorIs(t, test.Err(os.Stat(volumes)), fs.ErrNotExist, "%s: volumes after the container", snapshotter)
		if hasRootfs(t, s, "c1", snapshotter) {
			t.Errorf("%s: the root filesystem is left", snapshotter)
		}
	}
}

func TestRootfsRefusesArguments(t *testing.T) {
	s := openStore(t, Config{})
	img := &catalog.Image{ID: "sha256:00"}
	for _, id := range []string{"", ".", "..", "a/b", "../c", ".hidden"} {
		test.Is(t, test.Err(s.PrepareRootfs(t.Context(), id, img, "", nil)), errdefs.IsInvalidArgument, "prepare %q", id)
		test.Is(t, s.RemoveRootfs(t.Context(), id, ""), errdefs.IsInvalidArgument, "remove %q", id)
	}
	test.Refused(t, test.Err(s.PrepareRootfs(t.Context(), "c", img, "devmapper", nil)), errdefs.IsInvalidArgument, "native, overlayfs")
}

func TestRootfsInUserNamespace(t *testing.T) {
	_, s, img := pulled(t, Config{}, build(t, v1.Config{}, layer(t, file{name: "root"}, file{name: "user", uid: 1000}), layer(t, file{name: "x"})))
	root := test.Value(s.PrepareRootfs(t.Context(), "c1", img, "", &containerfs.Owner{UID: 200_000, GID: 200_000}))(t)
	test.Must(t, s.CanMap(""))
	dir := t.TempDir()
	test.Must(t, idmap.Mount(mappedTo(t, 200_000), root.Mounts, dir, filepath.Join(t.TempDir(), "scratch")))
	defer func() { test.Must(t, mount.UnmountAll(dir, 0)) }()
	for name, want := range map[string]uint32{".": 200_000, "root": 200_000, "user": 201_000} {
		var st unix.Stat_t
		test.Must(t, unix.Stat(filepath.Join(dir, name), &st))
		if st.Uid != want || st.Gid != want {
			t.Errorf("%s is owned by %d:%d, want %d", name, st.Uid, st.Gid, want)
		}
	}
	test.Is(t, test.Err(s.PrepareRootfs(t.Context(), "c3", img, disk.Native, &containerfs.Owner{UID: 1, GID: 1})), errdefs.IsFailedPrecondition, "prepare a native root filesystem in a user namespace")
	test.Is(t, s.CanMap(disk.Native), errdefs.IsFailedPrecondition, "CanMap of native")
}

func TestRootDirectoryIsOpenToAll(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	defer syscall.Umask(syscall.Umask(0o077))
	root := test.Value(s.PrepareRootfs(t.Context(), "c", pullImage(t, s, app), "", nil))(t)
	var st unix.Stat_t
	test.Must(t, unix.Stat(mounted(t, root.Mounts), &st))
	if st.Uid != 0 || st.Mode&0o777 != 0o755 {
		t.Errorf("/ is owned by %d with mode %o", st.Uid, st.Mode&0o777)
	}
}

func TestMountOptions(t *testing.T) {
	for _, sync := range []bool{false, true} {
		_, s, img := pulled(t, Config{SyncRootfs: sync, MountOptions: []string{"nodev"}}, layered(t, v1.Config{}))
		root := test.Value(s.PrepareRootfs(t.Context(), "c", img, "", nil))(t)
		options := root.Mounts[0].Options
		if slices.Contains(options, "volatile") == sync || !slices.Contains(options, "nodev") {
			t.Errorf("SyncRootfs %v: options %v", sync, options)
		}
		mounted(t, root.Mounts)
	}
}
