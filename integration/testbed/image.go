package testbed

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// File is an entry of an image layer.
type File struct {
	// Path inside the image, without a leading slash.
	Path string
	// Mode has the type (directory, symbolic link, regular) and permissions.
	Mode fs.FileMode
	// Body is the content of a regular file.
	Body []byte
	// Link is the target of a symbolic link or, if Mode is regular, of a hard link.
	Link     string
	UID, GID int
}

// ImageOption changes an image before it is made.
type ImageOption func(*imagePlan)

type imagePlan struct {
	config v1.Config
	layers [][]File
}

// WithConfig changes the image's configuration: user, environment, entrypoint…
func WithConfig(change func(*v1.Config)) ImageOption {
	return func(p *imagePlan) { change(&p.config) }
}

// WithUser sets the image's user: a name or uid, with or without a group.
func WithUser(user string) ImageOption {
	return WithConfig(func(c *v1.Config) { c.User = user })
}

// WithLayer adds a layer with these files.
func WithLayer(files ...File) ImageOption {
	return func(p *imagePlan) { p.layers = append(p.layers, files) }
}

// Busybox makes an image of this host's static busybox, with a hard link in /bin for every applet.
// It has the users root, app (1000, groups app and extra) and nobody. The same busybox and options
// always result in the same digest.
func Busybox(t T, options ...ImageOption) v1.Image {
	t.Helper()
	binary := staticBusybox(t)
	body, err := os.ReadFile(binary)
	Mustf(t, err, "read busybox")
	list, err := exec.CommandContext(t.Context(), binary, "--list").Output()
	Mustf(t, err, "list busybox's applets")
	return Image(t, append([]ImageOption{
		WithConfig(func(c *v1.Config) {
			c.Env = []string{"PATH=/bin"}
			c.Cmd = []string{"sh"}
		}),
		WithLayer(busyboxFiles(body, strings.Fields(string(list)))...),
	}, options...)...)
}

func busyboxFiles(body []byte, applets []string) []File {
	files := []File{
		{Path: "bin", Mode: fs.ModeDir | 0o755},
		{Path: "bin/busybox", Mode: 0o755, Body: body},
		{Path: "etc", Mode: fs.ModeDir | 0o755},
		{Path: "etc/passwd", Mode: 0o644, Body: []byte("root:x:0:0:root:/root:/bin/sh\n" +
			"app:x:1000:1000:app:/home/app:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{Path: "etc/group", Mode: 0o644, Body: []byte("root:x:0:\napp:x:1000:\nextra:x:2000:app\nnogroup:x:65534:\n")},
		{Path: "home", Mode: fs.ModeDir | 0o755},
		{Path: "home/app", Mode: fs.ModeDir | 0o755, UID: 1000, GID: 1000},
		{Path: "root", Mode: fs.ModeDir | 0o700},
		{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	}
	slices.Sort(applets)
	for _, applet := range slices.Compact(applets) {
		if applet != "busybox" {
			files = append(files, File{Path: "bin/" + path.Base(applet), Mode: 0o755, Link: "bin/busybox"})
		}
	}
	return files
}

// Image makes an image from the options; without options it has no layer.
func Image(t T, options ...ImageOption) v1.Image {
	t.Helper()
	var plan imagePlan
	for _, option := range options {
		option(&plan)
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, files := range plan.layers {
		layer, err := tarball.LayerFromOpener(opener(t, files), tarball.WithMediaType(types.OCILayer))
		Mustf(t, err, "make an image layer")
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			t.Fatalf("add an image layer: %v", err)
		}
	}
	config, err := image.ConfigFile()
	Mustf(t, err, "read the image's configuration")
	config = config.DeepCopy()
	config.Architecture, config.OS = architecture, "linux"
	config.Created = v1.Time{Time: imageTime}
	config.Config = plan.config
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatalf("configure the image: %v", err)
	}
	return image
}

// Artifact makes a manifest that is not a container image and whose blobs are these regular files.
func Artifact(t T, files ...File) v1.Image {
	t.Helper()
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.cncf.model.config.v1+json")
	for _, f := range files {
		var err error
		if image, err = mutate.Append(image, mutate.Addendum{
			Layer:       static.NewLayer(f.Body, "application/vnd.cncf.model.weight.v1.raw"),
			Annotations: map[string]string{imagespec.AnnotationTitle: f.Path},
		}); err != nil {
			t.Fatalf("add a blob: %v", err)
		}
	}
	return image
}

// imageTime is fixed, so that digests do not change.
var imageTime = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

func opener(t T, files []File) tarball.Opener {
	t.Helper()
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	for _, file := range files {
		Mustf(t, archive.WriteHeader(header(file)), "write %s to a layer", file.Path)
		if file.Link == "" {
			if _, err := archive.Write(file.Body); err != nil {
				t.Fatalf("write %s to a layer: %v", file.Path, err)
			}
		}
	}
	Mustf(t, archive.Close(), "end a layer")
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil }
}

func header(file File) *tar.Header {
	h := &tar.Header{
		Name:     file.Path,
		Mode:     int64(file.Mode.Perm()),
		Uid:      file.UID,
		Gid:      file.GID,
		ModTime:  imageTime,
		Typeflag: tar.TypeReg,
		Linkname: file.Link,
	}
	// A tar header has the sticky and set-id bits at their Unix positions.
	for bit, unix := range map[fs.FileMode]int64{fs.ModeSticky: 0o1000, fs.ModeSetgid: 0o2000, fs.ModeSetuid: 0o4000} {
		if file.Mode&bit != 0 {
			h.Mode |= unix
		}
	}
	switch {
	case file.Mode.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, file.Path+"/"
	case file.Mode&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
	case file.Link != "":
		h.Typeflag = tar.TypeLink
	default:
		h.Size = int64(len(file.Body))
	}
	return h
}
