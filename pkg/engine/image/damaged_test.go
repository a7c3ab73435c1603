package image

import (
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// lowerOf returns the directories of an image's layers, topmost first.
func lowerOf(t *testing.T, s *Store, img *catalog.Image) []string {
	t.Helper()
	v := s.views.Get(s.views.KeyOf(s.cfg.DefaultSnapshotter, img.ChainID))
	if v == nil {
		t.Fatal("the image is not unpacked")
	}
	return v.Stack.Lower
}

func blobPath(s *Store, d digest.Digest) string {
	return s.files.Path("content", "blobs", d.Algorithm().String(), d.Encoded())
}

// A pull replaces files of an image that the disk lost. A container start does so, too, if the rest
// of the image suffices; otherwise the kubelet pulls the image.
func TestDamagedImagesAreMended(t *testing.T) {
	base := layer(t, file{name: "base", body: "of the base"})
	built := build(t, v1.Config{Env: []string{"A=b"}}, base, layer(t), layer(t, file{name: "middle", body: "m"}), layer(t, file{name: "top", body: "of the top"}))
	manifest := test.Value(built.Manifest())(t)
	target := test.Value(built.Digest())(t)
	config, whole := digest.Digest(manifest.Config.Digest.String()), digest.Digest(manifest.Layers[3].Digest.String())
	files := map[string]string{"base": "of the base", "middle": "m", "top": "of the top"}
	for name, c := range map[string]struct {
		damage func(t *testing.T, s *Store, img *catalog.Image)
		// alone means that a container can start without the registry.
		alone bool
	}{
		"snapshot of the top layer": {func(t *testing.T, s *Store, img *catalog.Image) {
			test.Must(t, os.RemoveAll(filepath.Dir(lowerOf(t, s, img)[0])))
		}, true},
		"directory of the lowest layer": {func(t *testing.T, s *Store, img *catalog.Image) { test.Must(t, os.RemoveAll(lowerOf(t, s, img)[3])) }, true},
		"all of the snapshotter": {func(t *testing.T, s *Store, _ *catalog.Image) {
			test.Must(t, s.Close())
			test.Must(t, os.RemoveAll(s.files.Path(disk.SnapshotsDir, disk.Overlayfs)))
		}, true},
		"directory and blob of the top layer": {func(t *testing.T, s *Store, img *catalog.Image) {
			test.Must(t, os.RemoveAll(lowerOf(t, s, img)[0]))
			test.Must(t, os.Truncate(blobPath(s, whole), 0))
		}, false},
		"directory and bytes of the top layer": {func(t *testing.T, s *Store, img *catalog.Image) {
			test.Must(t, os.RemoveAll(lowerOf(t, s, img)[0]))
			test.Must(t, os.WriteFile(blobPath(s, whole), make([]byte, manifest.Layers[3].Size), 0o600))
		}, false},
		"configuration": {func(t *testing.T, s *Store, _ *catalog.Image) { test.Must(t, os.Truncate(blobPath(s, config), 0)) }, true},
		"manifest": {func(t *testing.T, s *Store, _ *catalog.Image) {
			test.Must(t, os.Remove(blobPath(s, digest.Digest(target.String()))))
		}, true},
		"blob of the top layer": {func(t *testing.T, s *Store, _ *catalog.Image) { test.Must(t, os.Remove(blobPath(s, whole))) }, true},
	} {
		for _, restarted := range []bool{false, true} {
			t.Run(name+map[bool]string{true: " after a restart"}[restarted], func(t *testing.T) {
				reg := newTestRegistry(t)
				reg.push(t, "app:1", built)
				damaged := func(t *testing.T) (*Store, *catalog.Image) {
					s := openStore(t, Config{HostsDir: reg.hosts(t)})
					img := pullImage(t, s, app)
					c.damage(t, s, img)
					if s.files.DB.View(func(*bolt.Tx) error { return nil }) != nil { // closed
						return openStore(t, s.cfg), img
					}
					if restarted {
						s = reopen(t, s)
					}
					return s, img
				}
				runs := func(t *testing.T, s *Store, img *catalog.Image, id string) {
					t.Helper()
					wantFiles(t, s, img, id, "", files)
				}
				t.Run("pull", func(t *testing.T) {
					s, _ := damaged(t)
					img := pullImage(t, s, app)
					for _, d := range []digest.Digest{config, whole, digest.Digest(target.String())} {
						test.Checkf(t, test.Err(os.Stat(blobPath(s, d))), "blob %s after the pull", d)
					}
					runs(t, s, img, "c1")
					for _, dir := range lowerOf(t, s, img) {
						test.Check(t, test.Err(os.Stat(dir)))
					}
					// A pull of an undamaged image writes and downloads nothing.
					reg.forgetHits()
					before := writes(t, s)
					pullImage(t, s, app)
					if now := writes(t, s); now != before || reg.count("GET", "/blobs/") != 0 {
						t.Errorf("a pull of an undamaged image wrote %d times and fetched %d blobs", now-before, reg.count("GET", "/blobs/"))
					}
				})
				t.Run("container", func(t *testing.T) {
					s, old := damaged(t)
					img, err := s.Get(old.ID)
					if errdefs.IsNotFound(err) {
						return // the restart removed the damaged image: the kubelet pulls it
					}
					test.Must(t, err)
					reg.setGuard(func(w http.ResponseWriter, _ *http.Request) bool {
						http.Error(w, "{}", http.StatusUnauthorized)
						return true
					})
					defer reg.setGuard(nil)
					if c.alone {
						runs(t, s, img, "c1")
						return
					}
					test.Fails(t, test.Err(s.PrepareRootfs(t.Context(), "c1", img, "", nil)), "a root filesystem was prepared without its top layer")
					ask := &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: app}}
					if st, err := NewService(s).ImageStatus(t.Context(), ask); err != nil || st.GetImage() != nil {
						t.Errorf("ImageStatus of the damaged image is %v, %v; want none, so that the kubelet pulls", st.GetImage(), err)
					}
					reg.setGuard(nil)
					runs(t, s, pullImage(t, s, app), "c1")
					if st, err := NewService(s).ImageStatus(t.Context(), ask); err != nil || st.GetImage() == nil {
						t.Errorf("ImageStatus after the pull is %v, %v", st.GetImage(), err)
					}
				})
			})
		}
	}
}

// A damaged layer that two images share is replaced for both, with each snapshotter.
func TestSharedDamagedLayersAreMended(t *testing.T) {
	reg, base := newTestRegistry(t), layer(t, file{name: "base", body: "of the base"})
	reg.push(t, "app:1", build(t, v1.Config{}, base, layer(t, file{name: "one", body: "1"})))
	reg.push(t, "app:2", build(t, v1.Config{}, base, layer(t, file{name: "two", body: "2"})))
	for _, snapshotter := range []string{disk.Overlayfs, disk.Native} {
		t.Run(snapshotter, func(t *testing.T) {
			s := openStore(t, Config{HostsDir: reg.hosts(t), DefaultSnapshotter: snapshotter})
			pullImage(t, s, app)
			dirs := snapshotDirs(t, s)
			test.Must(t, os.RemoveAll(dirs[0]))
			if _, err := os.Stat(dirs[0]); !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			second := pullImage(t, s, domain+"/app:2")
			for id, img := range map[string]*catalog.Image{"c1": pullImage(t, s, app), "c2": second} {
				own := map[string]map[string]string{"c1": {"one": "1"}, "c2": {"two": "2"}}[id]
				own["base"] = "of the base"
				wantFiles(t, s, img, id, "", own)
			}
		})
	}
}
