// Command image makes an OCI image from directories, one for each platform, without a daemon that
// builds images. The same directories always result in the same digests: order and owners are
// fixed, and all times are SOURCE_DATE_EPOCH.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// about is the metadata of an image.
type about struct {
	name, version, revision string
	created                 time.Time
}

func run(args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	var a about
	out := flags.String("out", "", "the `directory` of the OCI layout; what is there is replaced")
	archive := flags.String("archive", "", "the `file` that gets the layout as an archive, as ctr and skopeo import it")
	flags.StringVar(&a.name, "name", "", "the name with the tag")
	flags.StringVar(&a.version, "version", "", "the version of what is in it")
	flags.StringVar(&a.revision, "revision", "", "the commit that it is made from")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || *archive == "" || a.name == "" || flags.NArg() == 0 {
		return errors.New("image needs -out DIRECTORY, -archive FILE, -name NAME:TAG and, for each platform, linux/amd64=DIRECTORY")
	}
	created, err := epoch(os.Getenv("SOURCE_DATE_EPOCH"))
	if err != nil {
		return err
	}
	a.created = created
	index, err := indexOf(a, flags.Args())
	if err != nil {
		return err
	}
	if err := writeLayout(*out, a, index); err != nil {
		return err
	}
	var buf bytes.Buffer
	if err := pack(&buf, *out, a.created); err != nil {
		return err
	}
	if err := os.WriteFile(*archive, buf.Bytes(), 0o644); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s@%s\n", a.name, digest)
	return err
}

// epoch returns the time of everything in the image.
func epoch(text string) (time.Time, error) {
	if text == "" {
		text = "0"
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is not a number of seconds: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// indexOf makes one image for each PLATFORM=DIRECTORY.
func indexOf(a about, platforms []string) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arg := range platforms {
		name, dir, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not PLATFORM=DIRECTORY", arg)
		}
		platform, err := v1.ParsePlatform(name)
		if err != nil {
			return nil, err
		}
		image, err := imageOf(a, *platform, dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	return index, nil
}

func imageOf(a about, platform v1.Platform, dir string) (v1.Image, error) {
	var buf bytes.Buffer
	if err := pack(&buf, dir, a.created); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: a.created}, CreatedBy: "make image"},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, configOf(a, platform, config.DeepCopy()))
}

// configOf completes a configuration that already has its layers.
func configOf(a about, platform v1.Platform, config *v1.ConfigFile) *v1.ConfigFile {
	config.Created = v1.Time{Time: a.created}
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/berth-installer"},
		Env:        []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		WorkingDir: "/",
		User:       "0:0",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "berth-installer",
			"org.opencontainers.image.version":  a.version,
			"org.opencontainers.image.revision": a.revision,
			"org.opencontainers.image.source":   "https://github.com/berth-cri/berth",
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return config
}

// writeLayout replaces the layout at dir. The name is in the annotations that containerd and other
// tools read.
func writeLayout(dir string, a about, index v1.ImageIndex) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	tag := a.name[strings.LastIndexByte(a.name, ':')+1:] // an earlier colon may be that of a registry's port
	return path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          a.name,
		"org.opencontainers.image.ref.name": tag,
	}))
}

// pack writes a directory as a tar archive: in lexical order, owned by root, and with one time.
func pack(w io.Writer, dir string, created time.Time) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return packOne(tw, path, name, info, created)
	})
	return errors.Join(err, tw.Close())
}

func packOne(tw *tar.Writer, path, name string, info fs.FileInfo, created time.Time) error {
	header := &tar.Header{Name: name, ModTime: created, Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		header.Typeflag, header.Name, header.Mode = tar.TypeDir, name+"/", 0o755
		return tw.WriteHeader(header)
	case info.Mode().IsRegular():
		header.Typeflag, header.Size, header.Mode = tar.TypeReg, info.Size(), 0o644|int64(info.Mode()&0o111)
	default:
		return fmt.Errorf("%s is neither a file nor a directory", path)
	}
	if err := tw.WriteHeader(header); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(tw, f)
	return err
}
