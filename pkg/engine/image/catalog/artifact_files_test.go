package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// blobCalled returns the descriptor of a blob titled name. With an empty name it has no title.
func blobCalled(name string) imagespec.Descriptor {
	d := imagespec.Descriptor{MediaType: "application/octet-stream", Digest: digest.FromString(name)}
	if name != "" {
		d.Annotations = map[string]string{imagespec.AnnotationTitle: name}
	}
	return d
}

func manyBlobs(n int, prefix string) (out []imagespec.Descriptor) {
	for i := range n {
		out = append(out, blobCalled(fmt.Sprintf("%s%d", prefix, i)))
	}
	return out
}

func TestArtifactFiles(t *testing.T) {
	nameless := blobCalled("")
	with := func(mediaType string, annotations map[string]string) imagespec.Descriptor {
		return imagespec.Descriptor{MediaType: mediaType, Digest: digest.FromString(mediaType), Annotations: annotations}
	}
	long := strings.Repeat("n", maxFileName+1)
	type blobs []imagespec.Descriptor
	for name, c := range map[string]struct {
		blobs blobs
		want  []string // the path of each file, the media type of each archive
		says  string   // a part of the expected error
	}{
		"titles":                       {blobs: blobs{blobCalled("a.txt"), blobCalled("dir/b.txt"), blobCalled("./dir//c")}, want: []string{"a.txt", "dir/b.txt", "dir/c"}},
		"no title":                     {blobs: blobs{nameless}, want: []string{"sha256-" + nameless.Digest.Encoded()}},
		"empty JSON":                   {blobs: blobs{with(imagespec.MediaTypeEmptyJSON, nil)}, want: []string{}},
		"ModelPack":                    {blobs: blobs{with("application/vnd.cncf.model.weight.v1.raw", map[string]string{modelPath: "weights/1.bin"})}, want: []string{"weights/1.bin"}},
		"archive of ModelPack":         {blobs: blobs{with("application/vnd.cncf.model.weight.v1.tar+zstd", map[string]string{modelPath: "weights/1.bin"})}, want: []string{imagespec.MediaTypeImageLayerZstd}},
		"former ModelPack":             {blobs: blobs{with("application/vnd.cnai.model.doc.v1.tar", map[string]string{formerModelPath: "README.md"})}, want: []string{imagespec.MediaTypeImageLayer}},
		"directory of ORAS":            {blobs: blobs{with(imagespec.MediaTypeImageLayerGzip, map[string]string{PackedDirectory: "true", imagespec.AnnotationTitle: "dir"})}, want: []string{imagespec.MediaTypeImageLayerGzip}},
		"archive that is not unpacked": {blobs: blobs{with("application/vnd.cncf.helm.chart.content.v1.tar+gzip", map[string]string{imagespec.AnnotationTitle: "chart.tgz"})}, want: []string{"chart.tgz"}},
		"title begins with ..":         {blobs: blobs{blobCalled("../etc/passwd")}, says: "inside of a volume"},
		"title leads out by ..":        {blobs: blobs{blobCalled("a/../../b")}, says: "inside of a volume"},
		"absolute":                     {blobs: blobs{blobCalled("/etc/passwd")}, says: "inside of a volume"},
		"title is the volume":          {blobs: blobs{blobCalled("a/..")}, says: "inside of a volume"},
		"NUL in the title":             {blobs: blobs{blobCalled("a\x00b")}, says: "inside of a volume"},
		"same title twice":             {blobs: blobs{blobCalled("a"), blobCalled("./a")}, says: "both called"},
		"file and directory":           {blobs: blobs{blobCalled("a"), blobCalled("a/b/c")}, says: "in a directory of that name"},
		"directory and file":           {blobs: blobs{blobCalled("a/b/c"), blobCalled("a/b")}, says: "both called"},
		"long name":                    {blobs: blobs{blobCalled("d/" + long)}, says: "256 bytes"},
		"as deep as allowed":           {blobs: blobs{blobCalled(strings.Repeat("d/", maxFileDepth) + "f")}, want: []string{strings.Repeat("d/", maxFileDepth) + "f"}},
		"too deep":                     {blobs: blobs{blobCalled(strings.Repeat("d/", maxFileDepth+1) + "f")}, says: "in 65 directories"},
		"long path":                    {blobs: blobs{blobCalled(strings.Repeat("d/", 2048) + "f")}, says: "4097 bytes"},
		"encrypted":                    {blobs: blobs{with("application/vnd.cncf.model.weight.v1.raw+encrypted", nil)}, says: "encrypted"},
		"invalid digest":               {blobs: blobs{{MediaType: "a/b", Digest: "x"}}, says: "digest"},
		"digest with a path":           {blobs: blobs{{MediaType: "a/b", Digest: "sha256:../../x"}}, says: "digest"},
		"too many bytes of names":      {blobs: manyBlobs(400, strings.Repeat("d/", 1500)), says: "limit"},
	} {
		files, err := artifactFiles(imagespec.Manifest{Layers: c.blobs})
		if c.says != "" {
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.says) && !strings.Contains(err.Error(), "names of more than") {
				t.Errorf("%s: %v, want %q", name, err, c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := []string{}
		for _, f := range files {
			if f.Path == "" {
				got = append(got, f.Blob.MediaType)
			} else {
				got = append(got, f.Path)
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
