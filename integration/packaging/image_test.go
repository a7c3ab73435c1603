package packaging

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestImage builds the installer's image for one platform and checks its names, entrypoint and
// files. tools/image tests that builds are reproducible.
func TestImage(t *testing.T) {
	out := t.TempDir()
	testbed.Must(t, build(out, "image", "VERSION=1.0.0", "PLATFORMS="+runtime.GOARCH))
	top, err := layout.ImageIndexFromPath(filepath.Join(out, "image"))
	testbed.Must(t, err)
	testbed.Check(t, validate.Index(top))
	first := indexOf(t, out).Manifests[0]
	if first.Annotations["io.containerd.image.name"] != "ghcr.io/berth-cri/berth:1.0.0" || first.Annotations["org.opencontainers.image.ref.name"] != "1.0.0" {
		t.Errorf("the image has the names %v", first.Annotations)
	}
	index, err := top.ImageIndex(first.Digest)
	testbed.Must(t, err)
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 1 || m.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("the platforms of the image are %+v, %v", m, err)
	}
	image, err := index.Image(m.Manifests[0].Digest)
	testbed.Must(t, err)
	config, err := image.ConfigFile()
	if err != nil || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/berth-installer"}) {
		t.Errorf("the entrypoint is %v, %v", config, err)
	}
	contains(t, image)
	archive, err := os.Stat(filepath.Join(out, "berth_1.0.0_image.tar"))
	if err != nil || archive.Size() < 1<<20 {
		t.Errorf("the archive is missing or too small: %v, %v", archive, err)
	}
}

func indexOf(t *testing.T, out string) *v1.IndexManifest {
	t.Helper()
	top, err := layout.ImageIndexFromPath(filepath.Join(out, "image"))
	testbed.Must(t, err)
	m, err := top.IndexManifest()
	if err != nil || len(m.Manifests) != 1 {
		t.Fatalf("the layout has %+v, %v, want one image", m, err)
	}
	return m
}

func contains(t *testing.T, image v1.Image) {
	t.Helper()
	files := mutate.Extract(image)
	defer files.Close()
	modes := map[string]int64{}
	for tr := tar.NewReader(files); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		testbed.Must(t, err)
		if h.Uid != 0 || h.Gid != 0 {
			t.Errorf("%s does not belong to root", h.Name)
		}
		if h.Typeflag == tar.TypeReg {
			modes["/"+strings.TrimPrefix(h.Name, "/")] = h.Mode
		}
	}
	for path, mode := range map[string]int64{
		"/usr/bin/berth-installer": 0o755, "/usr/bin/berth-controller": 0o755, "/usr/share/berth/bin/berth": 0o755, "/usr/share/berth/bin/berth-shim": 0o755,
		"/usr/share/berth/bin/berth-pause": 0o755, "/usr/share/berth/berth.service": 0o644,
	} {
		if modes[path] != mode {
			t.Errorf("%s has the mode %#o, want %#o; all files: %v", path, modes[path], mode, modes)
		}
	}
}
