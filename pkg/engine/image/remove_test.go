package image

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

func TestRemoveDropsAllNamesAndFreesSpace(t *testing.T) {
	reg := newTestRegistry(t)
	built := layered(t, v1.Config{})
	dgst := reg.push(t, "app:1", built)
	reg.push(t, "app:2", built)
	reg.push(t, "other:1", built)
	id := idOf(t, built)
	for _, by := range []string{domain + "/app:2", domain + "/app@" + dgst, id, id[len("sha256:"):], id[len("sha256:"):][:12]} {
		s := openStore(t, Config{HostsDir: reg.hosts(t), PinnedImages: []string{app}})
		s.nearlyFull = func(string) bool { return true }
		test.Must(t, s.Retain(t.Context(), nil))
		for _, ref := range []string{"/app:1", "/app:2", "/other:1"} {
			pullImage(t, s, domain+ref)
		}
		wantStored(t, s, 5, 4)
		test.Must(t, s.Remove(t.Context(), by))
		if left := s.List(); len(left) != 0 {
			t.Errorf("removed by %s, left: %+v", by, left[0])
		}
		for _, ref := range []string{app, domain + "/other:1", id} {
			test.Is(t, test.Err(s.Get(ref)), errdefs.IsNotFound, "removed by %s: get %s", by, ref)
		}
		// No wait is needed here: Remove returns once the space is free.
		if b, sn, _ := stored(t, s); len(b)+len(sn)+len(snapshotDirs(t, s)) != 0 {
			t.Errorf("removed by %s, left on disk: %v %v %v", by, b, sn, snapshotDirs(t, s))
		}
		if u, _ := s.Meter.Usage(); u.Bytes != 0 || u.Inodes != 0 {
			t.Errorf("usage of an empty store: %+v", u)
		}
		test.Must(t, s.Remove(t.Context(), by))
		if s = reopen(t, s); len(s.List()) != 0 {
			t.Errorf("removed by %s, back after restart", by)
		}
	}
}

// Remove waits until the space is free only if the disk is so full that a kubelet would evict pods.
func TestRemoveWaitsOnANearlyFullDisk(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	test.Must(t, s.Retain(t.Context(), nil))
	for _, full := range []bool{false, true} {
		s.nearlyFull = func(string) bool { return full }
		img := pullImage(t, s, app)
		// The collector waits while this lock is held.
		view := disk.Overlayfs + "/berth-view-" + img.ChainID.String()
		test.Must(t, s.views.Unpacker.Locks.Lock(t.Context(), view))
		var collectable atomic.Bool
		early := make(chan bool, 1)
		go func() {
			test.Check(t, s.Remove(t.Context(), app))
			early <- !collectable.Load()
		}()
		test.Eventually(t, "the image is no longer listed", func() bool { return len(s.List()) == 0 })
		if !full && !<-early {
			t.Error("Remove waited although the disk is not full")
		}
		if full {
			time.Sleep(20 * time.Millisecond) // Remove must not return within this time
			collectable.Store(true)
		}
		s.views.Unpacker.Locks.Unlock(view)
		if full && <-early {
			t.Error("Remove did not wait although the disk is full")
		}
		test.Eventually(t, "all content is collected", func() bool { b, sn, _ := stored(t, s); return len(b)+len(sn) == 0 })
	}
}

func TestScarce(t *testing.T) {
	for _, c := range []struct {
		free, all uint64
		want      bool
	}{{19, 100, true}, {20, 100, false}, {0, 0, false}, {1 << 62, 1 << 63, false}, {1 << 60, 1 << 63, true}} {
		test.Equal(t, fmt.Sprintf("scarce with %d of %d free", c.free, c.all), scarce(c.free, c.all, evictionMargin), c.want)
	}
}

func TestRemoveUnderRunningContainer(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	test.Must(t, s.Retain(t.Context(), nil))
	img := pullImage(t, s, app)
	root := test.Value(s.PrepareRootfs(t.Context(), "c1", img, "", nil))(t)
	volume := test.Value(s.PrepareVolume(t.Context(), "c2", img, ""))(t)
	dir := mounted(t, root.Mounts)

	test.Must(t, s.Remove(t.Context(), img.ID))
	// The content is removed. Four snapshots stay: three layers and the view.
	wantStored(t, s, 0, 4)
	sameTree(t, tree(t, dir), layeredTree)
	sameTree(t, tree(t, mounted(t, volume)), layeredTree)

	// They stay after a restart, too, until Retain lists the containers in use.
	s = reopen(t, s)
	wantStored(t, s, 0, 4)
	test.Must(t, s.Retain(t.Context(), []containerfs.Use{{Owner: "c1", ChainID: img.ChainID}, {Owner: "c2", ChainID: img.ChainID}}))
	wantStored(t, s, 0, 4)
	test.Must(t, mount.UnmountAll(dir, 0))
	seen := test.Value(s.SeenOf(containerfs.Use{Owner: "c1", ChainID: img.ChainID}))(t)
	sameTree(t, tree(t, mounted(t, seen)), layeredTree)

	// A new pull downloads the content again. The layers are still there.
	if pulled := pullImage(t, s, app); pulled.ID != img.ID {
		t.Errorf("the second pull returned %s, want %s", pulled.ID, img.ID)
	}
	wantStored(t, s, 5, 4)
	wantFiles(t, s, img, "n1", disk.Native, layeredTree)
	test.Must(t, s.RemoveRootfs(t.Context(), "n1", disk.Native))
	test.Must(t, s.Remove(t.Context(), img.ID))

	test.Must(t, mount.UnmountAll(dir, 0))
	test.Must(t, s.RemoveRootfs(t.Context(), "c1", ""))
	wantStored(t, s, 0, 4)
	test.Must(t, s.RemoveRootfs(t.Context(), "c2", ""))
	wantStored(t, s, 0, 0)
	if dirs := snapshotDirs(t, s); len(dirs) != 0 {
		t.Errorf("left on disk: %v", dirs)
	}
}

func TestRemovedImageCannotBecomeARootfs(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	test.Must(t, s.Retain(t.Context(), nil))
	img := pullImage(t, s, app)
	test.Must(t, s.Remove(t.Context(), img.ID))
	<-s.views.Work.Collector.Request()
	test.Is(t, test.Err(s.PrepareRootfs(t.Context(), "c1", img, "", nil)), errdefs.IsNotFound, "root filesystem of a removed image")
	wantStored(t, s, 0, 0)
	test.Fails(t, test.Err(os.Stat(filepath.Join(s.Root(), disk.RootfsDir, disk.Overlayfs, "c1"))), "a failed PrepareRootfs left a directory")
	if idle := s.views.Release("c1"); len(idle) != 0 {
		t.Errorf("a failed PrepareRootfs left a use: %v", idle)
	}
}

func TestRemovalRacesWithRootfs(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	test.Must(t, s.Retain(t.Context(), nil))
	for range 15 {
		img := pullImage(t, s, app)
		var wg sync.WaitGroup
		wg.Go(func() {
			test.Checkf(t, s.Remove(t.Context(), img.ID), "remove")
		})
		wg.Go(func() {
			root, err := s.PrepareRootfs(t.Context(), "c", img, "", nil)
			if err != nil {
				return // the image was removed first
			}
			dir := mounted(t, root.Mounts)
			sameTree(t, tree(t, dir), layeredTree)
			test.Checkf(t, mount.UnmountAll(dir, 0), "unmount")
			test.Checkf(t, s.RemoveRootfs(t.Context(), "c", ""), "remove root filesystem")
		})
		wg.Wait()
	}
	wantStored(t, s, 0, 0)
}
