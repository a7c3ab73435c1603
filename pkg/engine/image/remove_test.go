package image

import (
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
		must(t, s.Retain(t.Context(), nil))
		for _, ref := range []string{"/app:1", "/app:2", "/other:1"} {
			pullImage(t, s, domain+ref)
		}
		wantStored(t, s, 5, 4)
		must(t, s.Remove(t.Context(), by))
		if left := s.List(); len(left) != 0 {
			t.Errorf("removed by %s, left: %+v", by, left[0])
		}
		for _, ref := range []string{app, domain + "/other:1", id} {
			if _, err := s.Get(ref); !errdefs.IsNotFound(err) {
				t.Errorf("removed by %s, still there by %s: %v", by, ref, err)
			}
		}
		// Without waiting: Remove returns when the space is free.
		if b, sn, _ := stored(t, s); len(b)+len(sn)+len(snapshotDirs(t, s)) != 0 {
			t.Errorf("removed by %s, left on disk: %v %v %v", by, b, sn, snapshotDirs(t, s))
		}
		if u, _ := s.Usage(); u.Bytes != 0 || u.Inodes != 0 {
			t.Errorf("usage of an empty store: %+v", u)
		}
		must(t, s.Remove(t.Context(), by))
		if s = reopen(t, s); len(s.List()) != 0 {
			t.Errorf("removed by %s, back after restart", by)
		}
	}
}

// A removal waits for the space only where a kubelet would evict pods for it.
func TestRemoveWaitsOnANearlyFullDisk(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	must(t, s.Retain(t.Context(), nil))
	for _, full := range []bool{false, true} {
		s.nearlyFull = func(string) bool { return full }
		img := pullImage(t, s, app)
		// While this is held nothing is collected.
		view := viewKey{snapshotter: Overlayfs, chain: img.ChainID}.lockKey()
		must(t, s.views.unpacker.locks.Lock(t.Context(), view))
		var collectable atomic.Bool
		early := make(chan bool, 1)
		go func() {
			test.Check(t, s.Remove(t.Context(), app))
			early <- !collectable.Load()
		}()
		eventually(t, "the image is in no list", func() bool { return len(s.List()) == 0 })
		if !full && !<-early {
			t.Error("it waited")
		}
		if full {
			time.Sleep(20 * time.Millisecond) // time to return too early
			collectable.Store(true)
		}
		s.views.unpacker.locks.Unlock(view)
		if full && <-early {
			t.Error("it did not wait")
		}
		eventually(t, "all is collected", func() bool { b, sn, _ := stored(t, s); return len(b)+len(sn) == 0 })
	}
}

func TestScarce(t *testing.T) {
	for _, c := range []struct {
		free, all uint64
		want      bool
	}{{19, 100, true}, {20, 100, false}, {0, 0, false}, {1 << 62, 1 << 63, false}, {1 << 60, 1 << 63, true}} {
		if got := scarce(c.free, c.all, evictionMargin); got != c.want {
			t.Errorf("%d of %d free: %v", c.free, c.all, got)
		}
	}
}

func TestRemoveUnderRunningContainer(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	must(t, s.Retain(t.Context(), nil))
	img := pullImage(t, s, app)
	root, err := s.PrepareRootfs(t.Context(), "c1", img, "")
	must(t, err)
	volume, err := s.PrepareVolume(t.Context(), "c2", img, "")
	must(t, err)
	dir := mounted(t, root.Mounts)

	must(t, s.Remove(t.Context(), img.ID))
	// The content went, the layers (three and the view) stay.
	wantStored(t, s, 0, 4)
	sameTree(t, tree(t, dir), layeredTree)
	sameTree(t, tree(t, mounted(t, volume)), layeredTree)

	// Also over a restart, until the engine says otherwise.
	s = reopen(t, s)
	wantStored(t, s, 0, 4)
	must(t, s.Retain(t.Context(), []Use{{Owner: "c1", ChainID: img.ChainID}, {Owner: "c2", ChainID: img.ChainID}}))
	wantStored(t, s, 0, 4)
	must(t, mount.UnmountAll(dir, 0))
	seen, err := s.SeenOf(Use{Owner: "c1", ChainID: img.ChainID})
	must(t, err)
	sameTree(t, tree(t, mounted(t, seen)), layeredTree)

	// A new pull brings the content back, for layers that never went.
	if pulled := pullImage(t, s, app); pulled.ID != img.ID {
		t.Errorf("pulled again: %s", pulled.ID)
	}
	wantStored(t, s, 5, 4)
	wantFiles(t, s, img, "n1", Native, layeredTree)
	must(t, s.RemoveRootfs(t.Context(), "n1", Native))
	must(t, s.Remove(t.Context(), img.ID))

	must(t, mount.UnmountAll(dir, 0))
	must(t, s.RemoveRootfs(t.Context(), "c1", ""))
	wantStored(t, s, 0, 4)
	must(t, s.RemoveRootfs(t.Context(), "c2", ""))
	wantStored(t, s, 0, 0)
	if dirs := snapshotDirs(t, s); len(dirs) != 0 {
		t.Errorf("left on disk: %v", dirs)
	}
}

func TestRemovedImageCannotBecomeARootfs(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	must(t, s.Retain(t.Context(), nil))
	img := pullImage(t, s, app)
	must(t, s.Remove(t.Context(), img.ID))
	<-s.work.collector.request()
	if _, err := s.PrepareRootfs(t.Context(), "c1", img, ""); !errdefs.IsNotFound(err) {
		t.Errorf("root filesystem of a removed image: %v", err)
	}
	wantStored(t, s, 0, 0)
	if _, err := os.Stat(filepath.Join(s.Root(), rootfsDir, Overlayfs, "c1")); err == nil {
		t.Error("a failed PrepareRootfs left a directory")
	}
	if idle := s.views.table.release("c1"); len(idle) != 0 {
		t.Errorf("a failed PrepareRootfs left a use: %v", idle)
	}
}

func TestRemovalRacesWithRootfs(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	must(t, s.Retain(t.Context(), nil))
	for range 15 {
		img := pullImage(t, s, app)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.Remove(t.Context(), img.ID); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
		wg.Go(func() {
			root, err := s.PrepareRootfs(t.Context(), "c", img, "")
			if err != nil {
				return // the image was faster
			}
			dir := mounted(t, root.Mounts)
			sameTree(t, tree(t, dir), layeredTree)
			if err := mount.UnmountAll(dir, 0); err != nil {
				t.Errorf("unmount: %v", err)
			}
			if err := s.RemoveRootfs(t.Context(), "c", ""); err != nil {
				t.Errorf("remove root filesystem: %v", err)
			}
		})
		wg.Wait()
	}
	wantStored(t, s, 0, 0)
}
