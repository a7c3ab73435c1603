// Package archive imports and exports image archives.
package archive

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/engine/keyedlock"
	"github.com/berth-cri/berth/pkg/handler"
)

// Archives imports images from files and exports them.
type Archives struct {
	Puller *pull.Puller
	// importing allows one import at a time: content is first written under the names of the
	// archive's files, which several archives may share.
	importing keyedlock.Mutex
}

// New returns the archives of a store; they end with its puller.
func New(p *pull.Puller) *Archives { return &Archives{Puller: p, importing: keyedlock.NewMutex()} }

// Request describes how an archive is read.
type Request struct {
	// Name replaces the name of the archive's image. Several images cannot have one name.
	Name string
	// Snapshotter is the snapshotter to unpack into; empty is the default.
	Snapshotter string
	// Platform selects the images.
	Platform catalog.Platform
}

// Import imports the images of an archive: a tar file, compressed or not, in OCI or Docker format.
// It returns their names. Images imported before an error stay. Registries and verifiers are not
// contacted; the limits of pulls apply.
func (a *Archives) Import(ctx context.Context, from io.Reader, r Request) (names []string, err error) {
	err = a.Puller.During(ctx, func(ctx context.Context) error {
		names, err = a.importArchive(ctx, from, r)
		return err
	})
	return names, err
}

// ImportFor is Import for a handler. The user chose the archive, so a handler of the node's
// platform accepts WebAssembly modules too.
func (a *Archives) ImportFor(ctx context.Context, from io.Reader, name string, d *handler.Definition) ([]string, error) {
	wanted := catalog.PlatformOf(d)
	if wanted == catalog.NodePlatform {
		wanted = catalog.AnyPlatform
	}
	return a.Import(ctx, from, Request{Name: name, Snapshotter: d.Snapshotter, Platform: wanted})
}

func (a *Archives) importArchive(ctx context.Context, from io.Reader, r Request) (names []string, err error) {
	if err := a.importing.Lock(ctx); err != nil {
		return nil, err
	}
	defer a.importing.Unlock()
	defer func() {
		if err != nil {
			err = explainArchive(err, a.Puller.Files.Root)
		}
	}()
	s := a.Puller
	ctx, lease, err := s.Files.Lease(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		s.Files.EndLease(ctx, lease)
		s.Work.Collector.Kick()
	}()
	found, err := a.read(ctx, from)
	if err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.ImageRead)
	wanted, err := withNames(found, r.Name)
	if err != nil {
		return nil, err
	}
	for _, desc := range wanted {
		img, err := a.importOne(ctx, desc, r)
		if err != nil {
			return names, fmt.Errorf("image %s: %w", desc.Annotations[images.AnnotationImageName], err)
		}
		name := desc.Annotations[images.AnnotationImageName]
		names = append(names, name)
		log.G(ctx).WithFields(log.Fields{"image": img.ID, "name": name}).Info("Image imported")
	}
	return names, nil
}

// read writes the archive's content to the content store, and returns the entries of its index.
func (a *Archives) read(ctx context.Context, from io.Reader) ([]imagespec.Descriptor, error) {
	plain, err := compression.DecompressStream(from)
	if err != nil {
		return nil, fmt.Errorf("decompress the archive: %w", err)
	}
	defer plain.Close()
	s := a.Puller
	counted := newTarEntries(ctx, plain, s.Reader.Limits)
	defer counted.end()
	desc, err := archive.ImportIndex(ctx, s.Reader.Bounded(), counted)
	if err != nil {
		return nil, err
	}
	var index imagespec.Index
	var found []imagespec.Descriptor
	err = s.Reader.ReadJSON(ctx, desc, &index, func() error {
		found = index.Manifests
		return nil
	})
	return found, err
}

// withNames returns the images of an archive with normalised names.
func withNames(found []imagespec.Descriptor, name string) (out []imagespec.Descriptor, err error) {
	for _, desc := range found {
		if !images.IsManifestType(desc.MediaType) && !images.IsIndexType(desc.MediaType) {
			continue
		}
		its := desc.Annotations[images.AnnotationImageName]
		if ref := desc.Annotations[imagespec.AnnotationRefName]; its == "" && strings.ContainsAny(ref, "/:") {
			its = ref // other tools write only a tag there
		}
		if its = cmp.Or(name, its); its == "" {
			return nil, fmt.Errorf("the archive does not name image %s; give it a name with --name: %w", desc.Digest, errdefs.ErrInvalidArgument)
		}
		parsed, err := catalog.ParseName(its)
		if err != nil {
			return nil, err
		}
		desc.Annotations = map[string]string{images.AnnotationImageName: parsed.String()}
		out = append(out, desc)
	}
	switch {
	case len(out) == 0:
		return nil, fmt.Errorf("the archive has no image: %w", errdefs.ErrInvalidArgument)
	case name != "" && len(out) > 1:
		return nil, fmt.Errorf("the archive has %d images; they cannot all be called %s: %w", len(out), name, errdefs.ErrInvalidArgument)
	}
	return out, nil
}

func (a *Archives) importOne(ctx context.Context, desc imagespec.Descriptor, r Request) (*catalog.Image, error) {
	p, err := a.Puller.Plan(pull.Request{Ref: desc.Annotations[images.AnnotationImageName], Snapshotter: r.Snapshotter, Platform: r.Platform})
	if err != nil {
		return nil, err
	}
	desc.Annotations = nil
	names, err := catalog.RecordNames(p.Name, desc.Digest)
	if err != nil {
		return nil, err
	}
	n := catalog.Naming{Names: names, Target: desc, Labels: catalog.KubeletLabels}
	return a.Adopt(ctx, p, n, func(d digest.Digest) error {
		return fmt.Errorf("the archive lacks %s: %w", d, errdefs.ErrInvalidArgument)
	})
}

// Adopt makes an image from content in the store. lacks returns the error for missing content.
func (a *Archives) Adopt(ctx context.Context, p pull.Planned, n catalog.Naming, lacks func(digest.Digest) error) (*catalog.Image, error) {
	s := a.Puller
	known, end := s.Underway.Begin(p.Name.String(), p.Layers.Name)
	defer end()
	ctx = progress.With(ctx, known)
	leased, lease, err := s.Files.Lease(ctx, nil)
	if err != nil {
		return nil, err
	}
	img, err := s.BringIn(leased, p, pull.Source{Target: n.Target, Fetch: a.hold(lease, lacks), Expect: func([]imagespec.Descriptor) {}}, lease)
	if err == nil {
		failpoint.Hit(failpoint.ImageUnpacked)
		img, err = s.PublishAs(ctx, p, img, n, lease)
	}
	if err != nil {
		s.Files.EndLease(ctx, lease)
	}
	return img, err
}

// hold adds content to a lease, which keeps it from being collected. lacks returns the error for
// missing content.
func (a *Archives) hold(lease leases.Lease, lacks func(digest.Digest) error) images.HandlerFunc {
	f := a.Puller.Files
	return func(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		if err := f.Leases.AddResource(ctx, lease, leases.Resource{ID: desc.Digest.String(), Type: "content"}); err != nil {
			return nil, err
		}
		info, err := f.Content.Info(ctx, desc.Digest)
		if errdefs.IsNotFound(err) {
			return nil, lacks(desc.Digest)
		}
		if err == nil && info.Size != desc.Size {
			err = fmt.Errorf("content %s has %d bytes, but its descriptor says %d: %w", desc.Digest, info.Size, desc.Size, errdefs.ErrInvalidArgument)
		}
		return nil, err
	}
}

// Export writes images to one archive, which docker, containerd and Import can read. Each image
// gets its tag in refs, or else its first tag or its name by digest.
func (a *Archives) Export(ctx context.Context, to io.Writer, refs []string) error {
	return a.Puller.During(ctx, func(ctx context.Context) error { return a.write(ctx, to, refs) })
}

func (a *Archives) write(ctx context.Context, to io.Writer, refs []string) error {
	s := a.Puller
	var what []archive.ExportOpt
	ctx, lease, err := s.Files.Lease(ctx, nil)
	if err != nil {
		return err
	}
	defer s.Files.EndLease(ctx, lease)
	for _, ref := range refs {
		img, err := s.Catalog.Get(ref)
		if err == nil {
			err = img.Usable()
		}
		if err != nil {
			return err
		}
		name := img.Tag(ref)
		if name == "" && len(img.RepoDigests) > 0 {
			name = img.RepoDigests[0]
		}
		if name == "" {
			return fmt.Errorf("image %s has no name: %w", img.ID, errdefs.ErrFailedPrecondition)
		}
		held := a.hold(lease, func(d digest.Digest) error {
			return fmt.Errorf("%s of image %s is not on this node: its layers were discarded when they were unpacked, or its snapshotter fetches them by itself: %w", d, img.ID, errdefs.ErrNotFound)
		})
		if err := images.Walk(ctx, images.Handlers(held, images.HandlerFunc(s.Reader.Children)), img.Manifest); err != nil {
			return err
		}
		// Only the manifest of its platform is in the store.
		what = append(what, archive.WithManifest(img.Manifest, name))
	}
	what = append(what, archive.WithPlatform(catalog.AnyPlatform.Matcher()), archive.WithSkipNonDistributableBlobs())
	return archive.Export(ctx, s.Files.Content, to, what...)
}

func explainArchive(err error, root string) error {
	switch {
	case disk.IsNoSpace(err):
		return fmt.Errorf("import: no space left for images under %s (%s); remove images or enlarge the filesystem: %w", root, atomicfile.FreeSpace(root), errdefs.ErrResourceExhausted)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("import: the archive is not whole: %w: %w", err, errdefs.ErrInvalidArgument)
	case errors.Is(err, tar.ErrHeader), errors.Is(err, io.EOF), strings.Contains(err.Error(), "unrecognized image format"):
		return fmt.Errorf("import: not an archive of images in the format of OCI or Docker: %w: %w", err, errdefs.ErrInvalidArgument)
	case bounds.IsBeyond(err), errdefs.IsInvalidArgument(err), pull.IsContextErr(err), errdefs.IsResourceExhausted(err):
		return fmt.Errorf("import: %w", err)
	}
	return fmt.Errorf("import: %w: %w", err, errdefs.ErrInvalidArgument)
}
