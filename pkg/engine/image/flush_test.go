package image

import (
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
)

// marksOf returns the marks of unpackings that were not flushed.
func marksOf(t *testing.T, root string) []string {
	t.Helper()
	entries := test.Value(os.ReadDir(filepath.Join(root, disk.UnflushedDir)))(t)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// After a power cut, layers that were not flushed are unpacked again together with the layers above
// them. Other layers and the images stay.
func TestLayersOfAnEarlierBoot(t *testing.T) {
	reg := newTestRegistry(t)
	base, other := layer(t, file{name: "base", body: "base"}), layer(t, file{name: "other"})
	reg.push(t, "base:1", build(t, v1.Config{}, base))
	reg.push(t, "app:1", build(t, v1.Config{}, base, layer(t, file{name: "top", body: "top"})))
	reg.push(t, "other:1", build(t, v1.Config{}, other))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	lost := pullImage(t, s, domain+"/base:1")
	ctx := disk.InNamespace(t.Context())
	info := test.Value(s.files.Layers[disk.Overlayfs].Stat(ctx, lost.ChainID.String()))(t)
	top, kept := pullImage(t, s, app), pullImage(t, s, domain+"/other:1")
	test.Eventually(t, "all layers are flushed", func() bool { return len(marksOf(t, s.Root())) == 0 })
	test.Must(t, s.Close())
	// The mark of another boot is what a power cut before the flush leaves.
	test.Must(t, os.WriteFile(filepath.Join(s.Root(), disk.UnflushedDir, info.Labels["berth.dev/unpacking"]), []byte("another boot"), 0o600))

	s = test.Value(Open(t.Context(), s.cfg))(t)
	defer func() { test.Must(t, s.Close()) }()
	if marks := marksOf(t, s.Root()); len(marks) > 0 {
		t.Errorf("marks are left: %v", marks)
	}
	for img, want := range map[*catalog.Image]bool{lost: false, top: false, kept: true} {
		if done, err := unpack.IsUnpacked(ctx, s.files.Layers[disk.Overlayfs], img.ChainID); done != want || err != nil {
			t.Errorf("%v is unpacked: %v, %v; want %v", img.RepoTags, done, err, want)
		}
	}
	if len(s.List()) != 3 {
		t.Errorf("the images are %v, want 3", s.List())
	}
	before := reg.count("GET", "/blobs/")
	for _, img := range []*catalog.Image{lost, top, kept} {
		_, undo, err := s.views.Hold(ctx, "container", containerfs.ViewKey{Snapshotter: disk.Overlayfs, Chain: img.ChainID}, img)
		if err != nil {
			t.Errorf("hold the layers of %v: %v", img.RepoTags, err)
			continue
		}
		undo()
	}
	if n := reg.count("GET", "/blobs/"); n != before {
		t.Errorf("%d layers were downloaded again", n-before)
	}
}

// Unflushed layers of a daemon that was killed stay unpacked if the node has not rebooted since.
func TestLayersOfThisBoot(t *testing.T) {
	_, s, img := pulled(t, Config{}, build(t, v1.Config{}, layer(t, file{name: "a"})))
	test.Eventually(t, "all layers are flushed", func() bool { return len(marksOf(t, s.Root())) == 0 })
	test.Must(t, s.Close())
	test.Must(t, os.WriteFile(filepath.Join(s.Root(), disk.UnflushedDir, "KILLED"), []byte(s.files.Flusher.Boot), 0o600))

	s = test.Value(Open(t.Context(), s.cfg))(t)
	defer func() { test.Must(t, s.Close()) }()
	done, err := unpack.IsUnpacked(disk.InNamespace(t.Context()), s.files.Layers[disk.Overlayfs], img.ChainID)
	if err != nil || !done {
		t.Errorf("the image is unpacked: %v, %v; want true", done, err)
	}
	test.Eventually(t, "the killed daemon's unpacking is flushed", func() bool { return len(marksOf(t, s.Root())) == 0 })
}

// A layer need not have entries for the directories of layers below. These directories keep their
// owners, although the layer is unpacked before the layers below.
func TestDirectoriesOfLayersBelow(t *testing.T) {
	_, s, img := pulled(t, Config{}, build(t, v1.Config{},
		slow(t, 16<<20),
		layer(t, file{name: "data/", uid: 1000}, file{name: "data/deep/", uid: 1001}),
		layer(t, file{name: "data/deep/file"}),
		layer(t, file{name: "data/other"}, file{name: "new/file"})))
	v := s.views.Get(containerfs.ViewKey{Snapshotter: disk.Overlayfs, Chain: img.ChainID})
	seen := 0
	for _, dir := range v.Stack.Lower {
		for name, uid := range map[string]uint32{"data": 1000, "data/deep": 1001, "new": 0} {
			var st unix.Stat_t
			if unix.Lstat(filepath.Join(dir, name), &st) != nil {
				continue
			}
			seen++
			if st.Uid != uid {
				t.Errorf("%s in %s belongs to user %d, want %d", name, dir, st.Uid, uid)
			}
		}
	}
	if seen != 2+2+1+1 {
		t.Errorf("the layers have %d of these directories, want 6", seen)
	}
}
