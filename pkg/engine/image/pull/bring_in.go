package pull

import (
	"context"
	"math"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/step"
)

// dropDamaged removes damaged content, so that it is fetched again.
func (s *Puller) dropDamaged(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
	_, err := s.Files.DropDamaged(ctx, desc, catalog.IsDocument(desc.MediaType))
	return nil, err
}

// Source is the origin of an image.
type Source struct {
	Target imagespec.Descriptor
	// Fetch brings the content of a descriptor into the content store.
	Fetch images.HandlerFunc
	// Expect receives the layers before the first is fetched.
	Expect func(layers []imagespec.Descriptor)
}

// BringIn fetches and unpacks an image under a lease, and loads it.
func (s *Puller) BringIn(ctx context.Context, p Planned, from Source, lease leases.Lease) (*catalog.Image, error) {
	before, err := s.Files.EntriesOf(ctx, lease)
	if err != nil {
		return nil, err
	}
	target, fetch := from.Target, disk.Safely(from.Fetch)
	resolving, end := step.Begin(ctx, step.Resolve)
	described, err := s.Reader.Inspect(resolving, target, p.platform, fetch)
	if end(err); err != nil {
		return nil, err
	}
	manifest := described.Manifest
	from.Expect(manifest.Layers)
	progress.From(ctx).Expect(manifest.Layers)
	fetching := progress.Step{Name: step.Fetch}
	timed := func(layer context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		if !catalog.IsDocument(desc.MediaType) {
			defer fetching.Enter(ctx)()
		}
		return fetch(layer, desc)
	}
	handler := images.Handlers(images.HandlerFunc(timed), disk.Safely(s.childrenOf(p, described)))
	limit := s.Reader.Limits.MaxImageEntries - before
	if catalog.DescribesArtifact(manifest) {
		err = images.Dispatch(ctx, handler, semaphore.NewWeighted(int64(s.unpacker.Downloads)), target)
	} else {
		err = s.unpacker.Unpack(ctx, p.Layers, described, limit, handler, target)
		limit = math.MaxInt64 // Unpack has applied the limit
	}
	if err != nil {
		return nil, err
	}
	img, err := s.Reader.Load(ctx, target, p.platform)
	if err != nil {
		return nil, err
	}
	// UnpackStored fails if layers are still not unpacked, for example because no unpacker knows
	// their media type.
	k := s.views.KeyOf(p.Layers.Name, img.ChainID)
	l := s.Files.Layers[k.Snapshotter]
	return img, s.views.WithRepair(ctx, k, img, func() error {
		if err := s.unpacker.UnpackStored(ctx, l, img, limit); err != nil {
			return err
		}
		if !l.Kind.Layered {
			return nil
		}
		_, err := s.views.Build(ctx, l, k)
		return err
	})
}

// childrenOf lists what a document of an image refers to, labelled so that the collector keeps it.
func (s *Puller) childrenOf(p Planned, d catalog.Described) images.HandlerFunc {
	labels := images.ChildGCLabels
	if s.unpacker.DiscardLayers && !catalog.DescribesArtifact(d.Manifest) && !d.Wasm {
		labels = images.ChildGCLabelsFilterLayers
	}
	children := catalog.PickOf(images.SetChildrenMappedLabels(s.Files.Content, s.Reader.Children, labels), p.platform)
	if p.Layers.Kind.Remote {
		return snapshotters.AppendInfoHandlerWrapper(p.Name.String())(children).Handle
	}
	return children
}

// PublishAs records an image and ends its lease.
func (s *Puller) PublishAs(ctx context.Context, p Planned, img *catalog.Image, n catalog.Naming, lease leases.Lease) (*catalog.Image, error) {
	n.Platform = p.platform.Recorded(img)
	img, err := s.Catalog.Record(ctx, img, n, lease)
	if err == nil {
		s.Interrupted.done(ctx, p.image())
		if s.unpacker.DiscardLayers {
			s.Work.Collector.Kick() // the collector also counts
		} else {
			s.Work.Counter.Kick()
		}
	}
	return img, err
}

// abandon drops what a failed pull wrote, and interrupted pulls. If the disk is full or the image
// exceeded a limit, it waits until the space is free: the next attempt needs the space, and the
// leftovers of attempts must not add up.
func (s *Puller) abandon(ctx context.Context, lease leases.Lease, cause error) {
	s.Interrupted.Drop(context.WithoutCancel(ctx))
	s.Files.EndLease(ctx, lease)
	collected := s.Work.Collector.Request()
	if disk.IsNoSpace(cause) || bounds.IsBeyond(cause) {
		<-collected
	}
}
