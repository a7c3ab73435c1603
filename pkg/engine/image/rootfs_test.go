package image

import (
	"bytes"
	"errors"
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
	"github.com/berth-cri/berth/pkg/engine/pin"
)

func TestRootfsWritesNoDatabase(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	must(t, s.Retain(t.Context(), nil))
	img := pullImage(t, s, app)
	<-s.work.collector.request()
	<-s.work.counter.request()
	before := writes(t, s)
	snapshotsBefore, err := os.ReadFile(s.files.path(snapshotsDir, Overlayfs, "metadata.db"))
	must(t, err)
	for i := range 20 {
		id := fmt.Sprintf("c%d", i)
		_, err := s.PrepareRootfs(t.Context(), id, img, "")
		must(t, err)
		must(t, s.RemoveRootfs(t.Context(), id, ""))
	}
	if n := writes(t, s) - before; n != 0 {
		t.Errorf("20 root filesystems cost %d transactions", n)
	}
	snapshotsAfter, err := os.ReadFile(s.files.path(snapshotsDir, Overlayfs, "metadata.db"))
	must(t, err)
	if !bytes.Equal(snapshotsBefore, snapshotsAfter) {
		t.Error("the snapshotter's database changed")
	}
}

func TestPrepareRootfsIsIdempotent(t *testing.T) {
	for _, snapshotter := range allSnapshotters(t) {
		_, s, img := pulled(t, Config{}, layered(t, v1.Config{}))
		first, err := s.PrepareRootfs(t.Context(), "c1", img, snapshotter)
		must(t, err)
		dir := mounted(t, first.Mounts)
		must(t, os.WriteFile(filepath.Join(dir, "mine"), []byte("data"), 0o600))
		second, err := s.PrepareRootfs(t.Context(), "c1", img, snapshotter)
		must(t, err)
		if fmt.Sprint(first) != fmt.Sprint(second) {
			t.Errorf("%s: second call gave %+v, want %+v", snapshotter, second, first)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "mine")); err != nil || string(b) != "data" {
			t.Errorf("%s: what the container wrote: %q, %v", snapshotter, b, err)
		}
	}
}

func TestRootfsOnAnotherSnapshotter(t *testing.T) {
	reg, s := serve(t, Config{}, layered(t, v1.Config{}))
	must(t, s.Retain(t.Context(), nil))
	img := pullImage(t, s, app)
	reg.forgetHits()
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			id := fmt.Sprintf("c%d", i)
			root, err := s.PrepareRootfs(t.Context(), id, img, Native)
			if err != nil {
				t.Error(err)
				return
			}
			dir := mounted(t, root.Mounts)
			sameTree(t, tree(t, dir), layeredTree)
			test.Check(t, os.WriteFile(filepath.Join(dir, id), nil, 0o600))
			if root.Upper != "" || root.Snapshotter != Native {
				t.Errorf("rootfs %+v", root)
			}
		})
	}
	wg.Wait()
	if n := reg.count("", ""); n != 0 {
		t.Errorf("unpacking what is there asked the registry: %v", reg.hits)
	}
	for i := range 3 {
		must(t, s.RemoveRootfs(t.Context(), fmt.Sprintf("c%d", i), Native))
	}
	// Three layers in each snapshotter and one view.
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
			mounts, err := s.PrepareVolume(t.Context(), "c1", img, snapshotter)
			must(t, err)
			dir := mounted(t, mounts)
			if len(tree(t, dir)) == 0 {
				t.Errorf("%s %s: empty volume", snapshotter, ref)
			}
			if err := os.WriteFile(filepath.Join(dir, "w"), nil, 0o600); err == nil {
				t.Errorf("%s %s: volume is writable", snapshotter, ref)
			}
			if snapshotter != Overlayfs {
				continue // where this would be a copy of its own
			}
			_ = unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, "")
			_ = unix.Mount("", dir, "", unix.MS_REMOUNT, "")
			if err := os.WriteFile(filepath.Join(dir, "w"), nil, 0o600); err == nil {
				t.Errorf("%s %s: volume can be made writable", snapshotter, ref)
			}
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
			mounts, err := s.PrepareVolume(t.Context(), "c1", pullImage(t, s, domain+ref), snapshotter)
			must(t, err)
			dir := t.TempDir()
			must(t, idmap.Mount(userns, mounts, dir, filepath.Join(t.TempDir(), "scratch")))
			t.Cleanup(func() { must(t, mount.UnmountAll(dir, 0)) })
			entries, err := os.ReadDir(dir)
			must(t, err)
			for _, e := range entries {
				info, err := e.Info()
				must(t, err)
				if st := info.Sys().(*syscall.Stat_t); st.Uid < 200_000 || st.Gid < 200_000 {
					t.Errorf("%s %s: %s is of %d:%d", snapshotter, ref, e.Name(), st.Uid, st.Gid)
				}
			}
			if err := os.WriteFile(filepath.Join(dir, "w"), nil, 0o600); err == nil {
				t.Errorf("%s %s: volume is writable", snapshotter, ref)
			}
		}
	}
}

// mappedTo pins a user namespace whose ids begin at host.
func mappedTo(t *testing.T, host uint32) string {
	t.Helper()
	ids := runtimespec.LinuxIDMapping{HostID: host, Size: 65_536}
	dir := filepath.Join(t.TempDir(), "ns")
	ns, err := pin.Create(t.Context(), pin.Request{Dir: dir, User: &pin.User{UIDs: ids, GIDs: ids}})
	must(t, err)
	t.Cleanup(func() { test.Check(t, pin.Release(dir)) })
	return ns.User
}

func TestRetainRemovesOrphans(t *testing.T) {
	_, s, img := pulled(t, Config{}, layered(t, v1.Config{}))
	for _, snapshotter := range allSnapshotters(t) {
		for _, id := range []string{"kept", "orphan"} {
			_, err := s.PrepareRootfs(t.Context(), id+snapshotter, img, snapshotter)
			must(t, err)
			volumes, err := s.MakeVolumes(id+snapshotter, snapshotter)
			must(t, err)
			must(t, os.WriteFile(filepath.Join(volumes, "file"), make([]byte, 1<<20), 0o600))
		}
	}
	s = reopen(t, s)
	var uses []Use
	for _, snapshotter := range allSnapshotters(t) {
		uses = append(uses, Use{Owner: "kept" + snapshotter, ChainID: img.ChainID, Snapshotter: snapshotter})
	}
	must(t, s.Retain(t.Context(), uses))
	for _, u := range uses {
		for id, want := range map[string]bool{u.Owner: true, strings.Replace(u.Owner, "kept", "orphan", 1): false} {
			_, err := os.Stat(filepath.Join(s.files.volumesPath(u.Snapshotter, id), "file"))
			if hasRootfs(t, s, id, u.Snapshotter) != want || (err == nil) != want {
				t.Errorf("%s: root filesystem there: %v; volumes: %v", id, !want, err)
			}
		}
	}
	// Layers in each, a view in all but native, and the native container's snapshot.
	n := len(allSnapshotters(t))
	wantStored(t, s, 5, 3*n+n-1+1)
	eventually(t, "trash is emptied", func() bool {
		left, _ := os.ReadDir(s.files.path(trashDir))
		return len(left) == 0
	})
}

// What a container wrote is in its root filesystem and in its volumes, and goes with both.
func TestVolumesOfContainers(t *testing.T) {
	_, s, img := pulled(t, Config{}, layered(t, v1.Config{}))
	for _, snapshotter := range allSnapshotters(t) {
		_, err := s.PrepareRootfs(t.Context(), "c1", img, snapshotter)
		must(t, err)
		volumes, err := s.MakeVolumes("c1", snapshotter)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(volumes, "file"), bytes.Repeat([]byte("x"), 3<<20), 0o600))
		eventually(t, "volumes are counted", func() bool {
			n, _, _, err := s.WritableUsage(t.Context(), "c1", snapshotter)
			return err == nil && n >= 3<<20
		})
		must(t, s.RemoveRootfs(t.Context(), "c1", snapshotter))
		if _, err := os.Stat(volumes); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: volumes after the container: %v", snapshotter, err)
		}
		if hasRootfs(t, s, "c1", snapshotter) {
			t.Errorf("%s: the root filesystem is left", snapshotter)
		}
	}
}

func TestRootfsRefusesArguments(t *testing.T) {
	s := openStore(t, Config{})
	img := &Image{ID: "sha256:00"}
	for _, id := range []string{"", ".", "..", "a/b", "../c", ".hidden"} {
		if _, err := s.PrepareRootfs(t.Context(), id, img, ""); !errdefs.IsInvalidArgument(err) {
			t.Errorf("prepare %q: %v", id, err)
		}
		if err := s.RemoveRootfs(t.Context(), id, ""); !errdefs.IsInvalidArgument(err) {
			t.Errorf("remove %q: %v", id, err)
		}
	}
	if _, err := s.PrepareRootfs(t.Context(), "c", img, "devmapper"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "native, overlayfs") {
		t.Errorf("unknown snapshotter: %v", err)
	}
}

func TestRootfsInUserNamespace(t *testing.T) {
	_, s, img := pulled(t, Config{}, build(t, v1.Config{}, layer(t, file{name: "root"}, file{name: "user", uid: 1000}), layer(t, file{name: "x"})))
	root, err := s.PrepareRootfs(t.Context(), "c1", img, "", OwnedBy(200_000, 200_000))
	must(t, err)
	must(t, s.CanMap(""))
	dir := t.TempDir()
	must(t, idmap.Mount(mappedTo(t, 200_000), root.Mounts, dir, filepath.Join(t.TempDir(), "scratch")))
	defer func() { must(t, mount.UnmountAll(dir, 0)) }()
	for name, want := range map[string]uint32{".": 200_000, "root": 200_000, "user": 201_000} {
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(dir, name), &st))
		if st.Uid != want || st.Gid != want {
			t.Errorf("%s is owned by %d:%d, want %d", name, st.Uid, st.Gid, want)
		}
	}
	if _, err := s.PrepareRootfs(t.Context(), "c3", img, Native, OwnedBy(1, 1)); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("native in a user namespace: %v", err)
	}
	if err := s.CanMap(Native); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("native says %v", err)
	}
}

func TestRootDirectoryIsOpenToAll(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	defer syscall.Umask(syscall.Umask(0o077))
	root, err := s.PrepareRootfs(t.Context(), "c", pullImage(t, s, app), "")
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(mounted(t, root.Mounts), &st))
	if st.Uid != 0 || st.Mode&0o777 != 0o755 {
		t.Errorf("/ is owned by %d with mode %o", st.Uid, st.Mode&0o777)
	}
}

func TestMountOptions(t *testing.T) {
	for _, sync := range []bool{false, true} {
		_, s, img := pulled(t, Config{SyncRootfs: sync, MountOptions: []string{"nodev"}}, layered(t, v1.Config{}))
		root, err := s.PrepareRootfs(t.Context(), "c", img, "")
		must(t, err)
		options := root.Mounts[0].Options
		if slices.Contains(options, "volatile") == sync || !slices.Contains(options, "nodev") {
			t.Errorf("SyncRootfs %v: options %v", sync, options)
		}
		mounted(t, root.Mounts)
	}
}
