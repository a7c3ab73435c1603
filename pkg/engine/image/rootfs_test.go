package image

import (
	"bytes"
	"context"
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

	"github.com/berth-cri/berth/pkg/engine/idmap"
	"github.com/berth-cri/berth/pkg/engine/pin"
)

func TestRootfsWritesNoDatabase(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	must(t, s.Retain(t.Context(), nil))
	img := pullImage(t, s, domain+"/app:1")
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
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	for _, snapshotter := range allSnapshotters(t) {
		s := openStore(t, Config{HostsDir: reg.hosts(t)})
		img := pullImage(t, s, domain+"/app:1")
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
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	must(t, s.Retain(t.Context(), nil))
	img := pullImage(t, s, domain+"/app:1")
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
			if err := os.WriteFile(filepath.Join(dir, id), nil, 0o600); err != nil {
				t.Error(err)
			}
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
	reg.push(t, "one:1", build(t, v1.Config{}, layer(t, file{name: "f", body: "x"})))
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
	t.Cleanup(func() {
		if err := pin.Release(dir); err != nil {
			t.Error(err)
		}
	})
	return ns.User
}

func TestRetainRemovesOrphans(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	img := pullImage(t, s, domain+"/app:1")
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
		if _, err := s.RootfsOf(t.Context(), u); err != nil {
			t.Errorf("%s: %v", u.Owner, err)
		}
		u.Owner = strings.Replace(u.Owner, "kept", "orphan", 1)
		if _, err := s.RootfsOf(t.Context(), u); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", u.Owner, err)
		}
	}
	for _, snapshotter := range allSnapshotters(t) {
		volumes := func(id string) error {
			_, err := os.Stat(filepath.Join(s.files.volumesPath(snapshotter, id+snapshotter), "file"))
			return err
		}
		if err := volumes("kept"); err != nil {
			t.Errorf("%s: the volumes of a container that is there: %v", snapshotter, err)
		}
		if err := volumes("orphan"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the volumes of a container that nobody knows: %v", snapshotter, err)
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
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	img := pullImage(t, s, domain+"/app:1")
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
		if _, err := s.RootfsOf(t.Context(), Use{Owner: "c1", ChainID: img.ChainID, Snapshotter: snapshotter}); !errdefs.IsNotFound(err) {
			t.Errorf("%s: the root filesystem after the container: %v", snapshotter, err)
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
	reg := newTestRegistry(t)
	reg.push(t, "app:1", build(t, v1.Config{}, layer(t, file{name: "root"}, file{name: "user", uid: 1000}), layer(t, file{name: "x"})))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	img := pullImage(t, s, domain+"/app:1")
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
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	defer syscall.Umask(syscall.Umask(0o077))
	root, err := s.PrepareRootfs(t.Context(), "c", pullImage(t, s, domain+"/app:1"), "")
	must(t, err)
	var st unix.Stat_t
	must(t, unix.Stat(mounted(t, root.Mounts), &st))
	if st.Uid != 0 || st.Mode&0o777 != 0o755 {
		t.Errorf("/ is owned by %d with mode %o", st.Uid, st.Mode&0o777)
	}
}

func TestMountOptions(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	for _, sync := range []bool{false, true} {
		s := openStore(t, Config{HostsDir: reg.hosts(t), SyncRootfs: sync, MountOptions: []string{"nodev"}})
		root, err := s.PrepareRootfs(t.Context(), "c", pullImage(t, s, domain+"/app:1"), "")
		must(t, err)
		options := root.Mounts[0].Options
		if slices.Contains(options, "volatile") == sync || !slices.Contains(options, "nodev") {
			t.Errorf("SyncRootfs %v: options %v", sync, options)
		}
		mounted(t, root.Mounts)
	}
}

func BenchmarkRootfs(b *testing.B) {
	reg := newTestRegistry(b)
	reg.push(b, "app:1", layered(b, v1.Config{}))
	for _, c := range []struct {
		snapshotter string
		mount, sync bool
	}{{Overlayfs, false, false}, {Overlayfs, true, false}, {Overlayfs, true, true}, {Native, false, false}} {
		b.Run(fmt.Sprintf("%s/mount=%v/sync=%v", c.snapshotter, c.mount, c.sync), func(b *testing.B) {
			s := openStore(b, Config{HostsDir: reg.hosts(b), SyncRootfs: c.sync})
			must(b, s.Retain(b.Context(), nil))
			img := pullImage(b, s, domain+"/app:1")
			_, err := s.PrepareRootfs(b.Context(), "warm", img, c.snapshotter)
			must(b, err)
			dir := b.TempDir()
			b.ReportAllocs()
			for b.Loop() {
				root, err := s.PrepareRootfs(b.Context(), "c", img, c.snapshotter)
				must(b, err)
				if c.mount {
					must(b, mount.All(root.Mounts, dir))
					must(b, mount.UnmountAll(dir, 0))
				}
				must(b, s.RemoveRootfs(b.Context(), "c", c.snapshotter))
			}
		})
	}
}

// RootfsOf returns the root filesystem that PrepareRootfs made, so that it can be mounted again, also when the image is gone since.
// errdefs.ErrNotFound when there is none.
func (m *rootfses) RootfsOf(ctx context.Context, u Use) (*Rootfs, error) {
	ctx = inNamespace(ctx)
	l, name, err := m.files.layersFor(u.Owner, u.Snapshotter)
	if err != nil {
		return nil, err
	}
	if !l.kind.layered {
		mounts, err := l.Mounts(ctx, rootfsPrefix+u.Owner)
		if err != nil {
			return nil, fmt.Errorf("root filesystem of container %s: %w", u.Owner, err)
		}
		return &Rootfs{Mounts: mounts, Snapshotter: name}, nil
	}
	dir := m.files.rootfsPath(name, u.Owner)
	v := m.views.table.get(viewKey{snapshotter: name, chain: u.ChainID})
	if _, err := os.Stat(filepath.Join(dir, "work")); err != nil || v == nil {
		return nil, fmt.Errorf("container %s has no root filesystem: %w", u.Owner, errdefs.ErrNotFound)
	}
	forgetVolatile(dir)
	return m.stacked(v, name, dir), nil
}
