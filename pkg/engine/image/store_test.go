package image

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

func openStore(t testing.TB, c Config) *Store {
	t.Helper()
	if c.Root == "" {
		c.Root = filepath.Join(t.TempDir(), "images")
	}
	s := test.Value(Open(t.Context(), c))(t)
	t.Cleanup(func() { test.Check(t, s.Close()) })
	return s
}

func reopen(t testing.TB, s *Store) *Store {
	t.Helper()
	test.Must(t, s.Close())
	return openStore(t, s.cfg)
}

func pullImage(t testing.TB, s *Store, ref string) *catalog.Image {
	t.Helper()
	return test.Value(s.Pull(t.Context(), pull.Request{Ref: ref}))(t)
}

// serve pushes an image as app:1 to a new registry, and opens a store that pulls from it.
func serve(t testing.TB, c Config, img remote.Taggable) (*testRegistry, *Store) {
	t.Helper()
	reg := newTestRegistry(t)
	reg.push(t, "app:1", img)
	c.HostsDir = reg.hosts(t)
	return reg, openStore(t, c)
}

// pulled calls serve and pulls the image.
func pulled(t testing.TB, c Config, img remote.Taggable) (*testRegistry, *Store, *catalog.Image) {
	t.Helper()
	reg, s := serve(t, c, img)
	return reg, s, pullImage(t, s, app)
}

// small returns an image of one file.
func small(t testing.TB) v1.Image {
	return build(t, v1.Config{}, layer(t, file{name: "f"}))
}

// hasRootfs reports whether a container's root filesystem is on disk.
func hasRootfs(t testing.TB, s *Store, id, snapshotter string) bool {
	t.Helper()
	l, err := s.files.LayersFor(id, snapshotter)
	test.Must(t, err)
	if !l.Kind.Layered {
		_, err := l.Stat(disk.InNamespace(t.Context()), disk.RootfsPrefix+id)
		return err == nil
	}
	_, err = os.Stat(filepath.Join(s.files.RootfsPath(l.Name, id), "work"))
	return err == nil
}

// wantFiles checks the files of a container's root filesystem, and returns where it is mounted.
func wantFiles(t testing.TB, s *Store, img *catalog.Image, id, snapshotter string, want map[string]string) string {
	t.Helper()
	root := test.Value(s.PrepareRootfs(t.Context(), id, img, snapshotter, nil))(t)
	dir := mounted(t, root.Mounts)
	sameTree(t, tree(t, dir), want)
	return dir
}

// mounted mounts a root filesystem on a temporary directory, and returns the directory.
func mounted(t testing.TB, mounts []mount.Mount) string {
	t.Helper()
	dir := t.TempDir()
	test.Must(t, mount.All(mounts, dir))
	t.Cleanup(func() { test.Check(t, mount.UnmountAll(dir, unix.MNT_DETACH)) })
	return dir
}

// tree lists the files below dir with their content; directories end in "/".
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	test.Must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if d.IsDir() {
			out[rel+"/"] = ""
			return nil
		}
		b, err := os.ReadFile(path)
		out[rel] = string(b)
		return err
	}))
	return out
}

func sameTree(t testing.TB, got, want map[string]string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("files are\n%v, want\n%v", got, want)
	}
}

// stored lists the blobs, the snapshots and the unfinished downloads on disk.
func stored(t testing.TB, s *Store) (blobs, snaps, ingests []string) {
	t.Helper()
	ctx := disk.InNamespace(t.Context())
	test.Must(t, s.files.Content.Walk(ctx, func(i content.Info) error { blobs = append(blobs, i.Digest.String()); return nil }))
	for name, l := range s.files.Layers {
		test.Must(t, l.Walk(ctx, func(_ context.Context, i snapshots.Info) error { snaps = append(snaps, name+"/"+i.Name); return nil }))
	}
	found := test.Value(filepath.Glob(s.files.Path("content", "ingest", "*")))(t)
	return blobs, snaps, found
}

func wantStored(t testing.TB, s *Store, blobs, snaps int) {
	t.Helper()
	<-s.views.Work.Collector.Request()
	b, sn, in := stored(t, s)
	if len(b) != blobs || len(sn) != snaps || len(in) != 0 {
		t.Errorf("store holds %d blobs %v, %d snapshots %v, ingests %v; want %d blobs, %d snapshots, no ingest", len(b), b, len(sn), sn, in, blobs, snaps)
	}
}

// snapshotDirs lists the directories of layers, which use most of the disk space.
func snapshotDirs(t testing.TB, s *Store) []string {
	t.Helper()
	return test.Value(filepath.Glob(s.files.Path(disk.SnapshotsDir, "*", "snapshots", "*")))(t)
}

func wantLeases(t testing.TB, s *Store, want int) {
	t.Helper()
	if n := leasesLeft(t, s); n != want {
		t.Errorf("%d leases, want %d", n, want)
	}
}

func leasesLeft(t testing.TB, s *Store) int {
	t.Helper()
	l := test.Value(s.files.Leases.List(disk.InNamespace(t.Context())))(t)
	return len(l)
}

// writes returns a number that grows with every write transaction.
func writes(t testing.TB, s *Store) (id int) {
	t.Helper()
	test.Must(t, s.files.DB.View(func(tx *bolt.Tx) error { id = tx.ID(); return nil }))
	return id
}

// layered returns an image of three layers, which add, change and delete files.
func layered(t testing.TB, config v1.Config) v1.Image {
	return build(t, config,
		layer(t, file{name: "etc/"}, file{name: "etc/keep", body: "kept"}, file{name: "etc/gone", body: "x"}, file{name: "opaque/"}, file{name: "opaque/old", body: "old"}),
		layer(t, file{name: "etc/.wh.gone"}, file{name: "etc/keep", body: "changed"}, file{name: "opaque/"}, file{name: "opaque/.wh..wh..opq"}, file{name: "opaque/new", body: "new"}),
		layer(t, file{name: "bin/"}, file{name: "bin/app", body: "#!", mode: 0o755}),
	)
}

var layeredTree = map[string]string{
	"bin/": "", "bin/app": "#!", "etc/": "", "etc/keep": "changed", "opaque/": "", "opaque/new": "new",
}

func TestPullByTagGivesRootfs(t *testing.T) {
	built := layered(t, v1.Config{User: "1002:7", Cmd: []string{"/bin/app"}, StopSignal: "SIGUSR1"})
	_, s, img := pulled(t, Config{}, built)
	dgst := digestOf(t, built)
	if img.ID != idOf(t, built) {
		t.Errorf("id %s, want the configuration's digest %s", img.ID, idOf(t, built))
	}
	test.EqualLists(t, "tags", img.RepoTags, []string{app})
	test.EqualLists(t, "digests", img.RepoDigests, []string{domain + "/app@" + dgst})
	if img.Config.StopSignal != "SIGUSR1" || img.Config.Cmd[0] != "/bin/app" || img.Platform.Architecture != runtime.GOARCH {
		t.Errorf("the image has configuration %+v, platform %+v", img.Config, img.Platform)
	}
	size := test.Value(built.Size())(t)
	if img.Size <= uint64(size) {
		t.Errorf("size %d does not count the layers", img.Size)
	}

	root := test.Value(s.PrepareRootfs(t.Context(), "c1", img, "", nil))(t)
	if root.Snapshotter != disk.Overlayfs || root.Upper == "" {
		t.Errorf("the root filesystem is %+v", root)
	}
	dir := mounted(t, root.Mounts)
	sameTree(t, tree(t, dir), layeredTree)
	test.Must(t, os.WriteFile(filepath.Join(dir, "written"), []byte("w"), 0o600))
	sameTree(t, tree(t, root.Upper), map[string]string{"written": "w"})
	test.Must(t, mount.UnmountAll(dir, 0))
	test.Must(t, s.RemoveRootfs(t.Context(), "c1", ""))
	test.Must(t, s.RemoveRootfs(t.Context(), "c1", ""))
	test.Eventually(t, "the writable layer is deleted", func() bool {
		left, _ := os.ReadDir(s.files.Path(disk.TrashDir))
		return len(left) == 0
	})
	if left, _ := os.ReadDir(s.files.Path(disk.RootfsDir, disk.Overlayfs)); len(left) != 0 {
		t.Errorf("left of the removed root filesystem: %v", left)
	}
	wantLeases(t, s, 0)
}

func TestPullByDigest(t *testing.T) {
	reg := newTestRegistry(t)
	built := layered(t, v1.Config{})
	dgst := reg.push(t, "app:1", built)
	for _, ref := range []string{domain + "/app@" + dgst, domain + "/app:other@" + dgst} {
		s := openStore(t, Config{HostsDir: reg.hosts(t)})
		img := pullImage(t, s, ref)
		if len(img.RepoTags) != 0 || !slices.Equal(img.RepoDigests, []string{domain + "/app@" + dgst}) {
			t.Errorf("%s: tags %v digests %v, want none and the digest", ref, img.RepoTags, img.RepoDigests)
		}
		for _, by := range []string{ref, domain + "/app@" + dgst, domain + "/app:any@" + dgst} {
			if got, err := s.Get(by); err != nil || got.ID != img.ID {
				t.Errorf("get %s: %v, %v; want %s", by, got, err, img.ID)
			}
		}
		test.Is(t, test.Err(s.Get(app)), errdefs.IsNotFound, "get by a tag that was not pulled")
	}
}

func TestPullPicksPlatform(t *testing.T) {
	reg := newTestRegistry(t)
	mine := buildFor(t, runtime.GOARCH, v1.Config{}, layer(t, file{name: "mine"}))
	other := buildFor(t, "s390x", v1.Config{}, layer(t, file{name: "other"}))
	dgst := reg.push(t, "multi:1", indexOf(map[string]v1.Image{runtime.GOARCH: mine, "s390x": other}))
	reg.push(t, "foreign:1", indexOf(map[string]v1.Image{"s390x": other}))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})

	img := pullImage(t, s, domain+"/multi:1")
	if img.ID != idOf(t, mine) || !slices.Equal(img.RepoDigests, []string{domain + "/multi@" + dgst}) {
		t.Errorf("got %s %v, want this node's image under the index's digest", img.ID, img.RepoDigests)
	}
	if n := reg.count("GET", digestOf(t, other)); n != 0 {
		t.Errorf("the other platform's manifest was fetched %d times", n)
	}
	test.Refused(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: domain + "/foreign:1"})), errdefs.IsNotFound, "not built for linux/"+runtime.GOARCH)
	wantStored(t, s, 4, 2)

	// The same image by another name is one image.
	reg.push(t, "plain:1", mine)
	again := pullImage(t, s, domain+"/plain:1")
	if again.ID != img.ID || len(again.RepoTags) != 2 || len(again.RepoDigests) != 2 || len(s.List()) != 1 {
		t.Errorf("pulled by a second name: %+v, %d images; want 1 image with both names", again, len(s.List()))
	}
}

func TestPullWithoutLayers(t *testing.T) {
	_, s, img := pulled(t, Config{}, build(t, v1.Config{}))
	if img.ChainID != "" || img.Size == 0 {
		t.Errorf("image without layers: %+v", img)
	}
	test.Must(t, os.WriteFile(filepath.Join(wantFiles(t, s, img, "c", "", nil), "f"), nil, 0o600))
}

func TestMovedTagLeavesImage(t *testing.T) {
	first, second := build(t, v1.Config{}, layer(t, file{name: "first"})), build(t, v1.Config{}, layer(t, file{name: "second"}))
	reg, s, _ := pulled(t, Config{}, first)
	d1 := digestOf(t, first)
	reg.push(t, "app:1", second)
	img := pullImage(t, s, app)
	if img.ID != idOf(t, second) {
		t.Fatalf("the second pull by tag returned %s, want %s", img.ID, idOf(t, second))
	}
	for _, s := range []*Store{s, reopen(t, s)} {
		old := test.Value(s.Get(idOf(t, first)))(t)
		if len(old.RepoTags) != 0 || !slices.Equal(old.RepoDigests, []string{domain + "/app@" + d1}) {
			t.Errorf("old image has tags %v, digests %v", old.RepoTags, old.RepoDigests)
		}
		if got, err := s.Get(app); err != nil || got.ID != idOf(t, second) {
			t.Errorf("the tag refers to %v, %v; want the second image", got, err)
		}
		if len(s.List()) != 2 {
			t.Errorf("%d images, want 2", len(s.List()))
		}
	}
}

func TestRepeatedPullWritesNothing(t *testing.T) {
	for _, snapshotter := range allSnapshotters(t) {
		reg, s, img := pulled(t, Config{DefaultSnapshotter: snapshotter}, layered(t, v1.Config{}))
		reg.forgetHits()
		before := writes(t, s)
		if again := pullImage(t, s, app); again.ID != img.ID {
			t.Errorf("%s: the second pull returned %s, want %s", snapshotter, again.ID, img.ID)
		}
		if n := writes(t, s) - before; n != 0 {
			t.Errorf("%s: the second pull made %d write transactions", snapshotter, n)
		}
		if n := reg.count("GET", ""); n != 0 {
			t.Errorf("%s: the second pull downloaded: %v", snapshotter, reg.hits)
		}
		if n := reg.count("HEAD", "/manifests/1"); n != 1 {
			t.Errorf("%s: the second pull sent %d HEAD requests for the manifest, want 1", snapshotter, n)
		}
	}
}

func TestRestartKeepsImages(t *testing.T) {
	_, s, img := pulled(t, Config{PinnedImages: []string{domain + "/app*"}}, layered(t, v1.Config{}))
	if !img.Pinned {
		t.Error("the image is not pinned")
	}
	root := test.Value(s.PrepareRootfs(t.Context(), "c1", img, "", nil))(t)
	s = reopen(t, s)
	got := test.Value(s.Get(app))(t)
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", img) {
		t.Errorf("after a restart the image is\n%+v, want\n%+v", got, img)
	}
	before := writes(t, s)
	test.Must(t, s.Retain(t.Context(), []containerfs.Use{{Owner: "c1", ChainID: img.ChainID, Snapshotter: root.Snapshotter}}))
	again := test.Value(s.PrepareRootfs(t.Context(), "c1", got, "", nil))(t)
	if fmt.Sprint(again) != fmt.Sprint(root) {
		t.Errorf("after a restart the root filesystem is %+v, want %+v", again, root)
	}
	wantFiles(t, s, got, "c2", "", layeredTree)
	<-s.views.Work.Collector.Request()
	// Retain collects once or twice. Preparing root filesystems needs no write transaction.
	if n := writes(t, s) - before; n > 2 {
		t.Errorf("there were %d write transactions, want at most 2", n)
	}
}

func TestDamagedImageIsForgotten(t *testing.T) {
	built := layered(t, v1.Config{})
	_, s, _ := pulled(t, Config{}, built)
	test.Must(t, s.Close())
	_, hex, _ := strings.Cut(idOf(t, built), ":")
	test.Must(t, os.Remove(s.files.Path("content", "blobs", "sha256", hex)))
	s = openStore(t, s.cfg)
	test.Is(t, test.Err(s.Get(app)), errdefs.IsNotFound, "get a damaged image")
	img := pullImage(t, s, app)
	test.Checkf(t, test.Err(s.catalog.Reader.Config(t.Context(), img)), "read the configuration after another pull")
}

func TestOpenTwice(t *testing.T) {
	s := openStore(t, Config{})
	test.Refused(t, test.Err(Open(t.Context(), s.cfg)), errdefs.IsFailedPrecondition, "another process")
}

func TestOpenRefusesConfig(t *testing.T) {
	for _, c := range []Config{{}, {Root: "relative"}, {Root: "/a:b"}, {Root: "/a,b"}, {Root: t.TempDir(), DefaultSnapshotter: "zfs"}} {
		test.Is(t, test.Err(Open(t.Context(), c)), errdefs.IsInvalidArgument, "open with %+v", c)
	}
}

func TestWrongDiffIDIsRefused(t *testing.T) {
	_, s := serve(t, Config{}, withWrongDiffID(t, small(t)))
	test.Fails(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), "the pull of an image whose layer does not match its configuration succeeded")
	wantStored(t, s, 0, 0)
	if dirs := snapshotDirs(t, s); len(dirs) != 0 {
		t.Errorf("left behind: %v", dirs)
	}
}

func TestClosedStore(t *testing.T) {
	s := openStore(t, Config{})
	test.Must(t, s.Close())
	test.Is(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), errdefs.IsUnavailable, "pull after close")
	again := test.Value(Open(t.Context(), s.cfg))(t)
	test.Must(t, again.Close())
}
