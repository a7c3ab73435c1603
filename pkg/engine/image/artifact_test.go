package image

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/archive"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

const modelConfig = "application/vnd.cncf.model.config.v1+json"

type titled struct {
	title, mediaType, text string
	annotations            map[string]string
}

// artifact returns an artifact; each of its blobs is a file or a packed directory.
func artifact(t *testing.T, blobs ...titled) v1.Image {
	t.Helper()
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), modelConfig)
	for _, b := range blobs {
		mediaType := types.MediaType(b.mediaType)
		if mediaType == "" {
			mediaType = "application/octet-stream"
		}
		annotations := map[string]string{}
		if b.title != "" {
			annotations[imagespec.AnnotationTitle] = b.title
		}
		for k, v := range b.annotations {
			annotations[k] = v
		}
		var err error
		img, err = mutate.Append(img, mutate.Addendum{Layer: static.NewLayer([]byte(b.text), mediaType), Annotations: annotations})
		test.Must(t, err)
	}
	return img
}

// tarOf returns an archive of the entries. The Linkname of a regular file is its text.
func tarOf(t *testing.T, headers ...tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		text := h.Linkname
		if h.Typeflag == tar.TypeReg {
			h.Linkname, h.Size = "", int64(len(text))
		}
		test.Must(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			test.Must(t, test.Err(w.Write([]byte(text))))
		}
	}
	test.Must(t, w.Close())
	return b.String()
}

// volumeOf returns the directory with the files of an image's volume.
func volumeOf(t *testing.T, s *Store, container string, img *catalog.Image) string {
	t.Helper()
	mounts := test.Value(s.PrepareVolume(t.Context(), container, img, ""))(t)
	for _, o := range mounts[0].Options {
		if lower, ok := strings.CutPrefix(o, "lowerdir="); ok {
			dir, _, _ := strings.Cut(lower, ":")
			return dir
		}
	}
	t.Fatalf("no lower directory in the mounts %v", mounts)
	return ""
}

func TestArtifactVolume(t *testing.T) {
	large := strings.Repeat("weights ", 1<<17)
	_, s, img := pulled(t, Config{}, artifact(t,
		titled{title: "model/weights.bin", text: large},
		titled{title: "again.bin", text: large},
		titled{title: "README.md", text: "read me"},
		titled{title: "docs", mediaType: imagespec.MediaTypeImageLayer, annotations: map[string]string{catalog.PackedDirectory: "true"}, text: tarOf(t,
			tar.Header{Name: "docs/", Typeflag: tar.TypeDir, Mode: 0o755},
			tar.Header{Name: "docs/a.txt", Typeflag: tar.TypeReg, Mode: 0o644, Linkname: "of docs"},
		)},
	))
	if img.ArtifactType != modelConfig || len(img.RepoTags) != 1 {
		t.Errorf("the artifact is %+v", img)
	}
	dir := volumeOf(t, s, "c1", img)
	for name, want := range map[string]string{"model/weights.bin": large, "again.bin": large, "README.md": "read me", "docs/a.txt": "of docs"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s has %d bytes, %v; want %d", name, len(got), err, len(want))
		}
	}
	info := test.Value(os.Stat(filepath.Join(dir, "model/weights.bin")))(t)
	if st := info.Sys().(*syscall.Stat_t); st.Nlink != 3 || info.Mode() != 0o444 {
		t.Errorf("%d links, mode %v: the blob was copied, or cannot be read", st.Nlink, info.Mode())
	}
	test.Must(t, s.Meter.MeasureStored(disk.InNamespace(t.Context())))
	if images, _ := s.Meter.Usage(); images.Bytes > uint64(len(large))*3/2 {
		t.Errorf("%d bytes are in use: a blob of %d bytes is not shared", images.Bytes, len(large))
	}

	if again := pullImage(t, s, app); again.ID != img.ID {
		t.Errorf("the first pull returned %s, the second %s", img.ID, again.ID)
	}
	test.Refused(t, test.Err(s.PrepareRootfs(t.Context(), "c2", img, "", nil)), errdefs.IsFailedPrecondition, "volume")
	test.Is(t, test.Err(s.Whole(t.Context(), img)), errdefs.IsFailedPrecondition, "configuration of an artifact")

	// A container keeps its volume, also after a restart. Nothing is left once the container is
	// removed.
	test.Must(t, s.Remove(t.Context(), app))
	s = reopen(t, s)
	test.Must(t, s.Retain(t.Context(), []containerfs.Use{{Owner: "c1", ChainID: img.ChainID}}))
	<-s.views.Work.Collector.Request()
	test.Checkf(t, test.Err(os.Stat(filepath.Join(dir, "README.md"))), "a volume in use was removed")
	test.Must(t, s.Meter.MeasureStored(disk.InNamespace(t.Context())))
	if images, _ := s.Meter.Usage(); images.Bytes < uint64(len(large)) {
		t.Errorf("%d bytes are in use, less than the %d bytes of the volume", images.Bytes, len(large))
	}
	test.Must(t, s.RemoveRootfs(t.Context(), "c1", ""))
	wantStored(t, s, 0, 0)
}

// TestHostileArtifacts pulls artifacts with files outside of their volume, over or below a file of
// an archive, or beyond a limit. Each pull is refused and leaves nothing.
func TestHostileArtifacts(t *testing.T) {
	outside := t.TempDir()
	packed := func(h tar.Header) titled {
		return titled{title: "d", mediaType: imagespec.MediaTypeImageLayer, annotations: map[string]string{catalog.PackedDirectory: "true"}, text: tarOf(t, h)}
	}
	taken := packed(tar.Header{Name: "x", Typeflag: tar.TypeReg, Mode: 0o777, Linkname: "y"})
	for name, c := range map[string]struct {
		blobs []titled
		says  string
	}{
		"too many entries": {[]titled{
			packed(tar.Header{Name: "a", Typeflag: tar.TypeDir, Mode: 0o755}), {title: "a/b/c", text: "x"}, {title: "d/e/f/g/h", text: "y"},
		}, "max_image_entries"},
		"title outside of the volume":  {[]titled{{title: "../../x", text: "x"}}, "inside of a volume"},
		"through a link of an archive": {[]titled{{title: "way/x", text: "x"}, packed(tar.Header{Name: "way", Typeflag: tar.TypeSymlink, Linkname: outside})}, "way/x"},
		"over a file of an archive":    {[]titled{{title: "x", text: "x"}, taken}, "archive"},
		"below a file of an archive":   {[]titled{{title: "x/y", text: "x"}, taken}, "x/y"},
		"text instead of an archive": {[]titled{{
			title: "d", mediaType: imagespec.MediaTypeImageLayerGzip, annotations: taken.annotations, text: "no archive of any kind",
		}}, "ends too early"},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := serve(t, Config{Limits: bounds.Limits{MaxImageEntries: 5}}, artifact(t, c.blobs...))
			test.Says(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), c.says)
			wantStored(t, s, 0, 0)
		})
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside of the volume there are %v, %v", left, err)
	}
}

// An artifact has the same ID and files after a restart, and after an export and an import.
func TestArtifactsAreCarriedByArchives(t *testing.T) {
	_, source, img := pulled(t, Config{}, artifact(t, titled{title: "a", text: "of a"}))
	source = reopen(t, source)
	test.Must(t, source.Retain(t.Context(), nil))
	s := openStore(t, Config{})
	if names, err := s.Import(t.Context(), bytes.NewReader(exported(t, source, app)), archive.Request{}); err != nil || len(names) != 1 {
		t.Fatalf("the import returned %v, %v; want one name", names, err)
	}
	for where, s := range map[string]*Store{"restarted": source, "imported": s} {
		got, err := s.Get(app)
		if err != nil || got.ID != img.ID {
			t.Fatalf("the %s artifact is %+v, %v; want %s", where, got, err, img.ID)
		}
		sameTree(t, tree(t, volumeOf(t, s, "c", got)), map[string]string{"a": "of a"})
	}
}
