package unpack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/layerproc"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
)

type applier struct {
	*Unpacker
	id      string // of the unpacking
	entries *entryLimit
	// layers is the snapshotter to unpack into.
	layers *disk.Layers
	// pull is the context of the whole pull, of which unpacking is a step.
	pull     context.Context
	step     *progress.Step
	underway *progress.Pull
}

// worthAhead is the size of the smallest layer that is tried before the layers below exist. A
// failed attempt with a smaller layer takes as long as its unpacking.
const worthAhead = 1 << 20

var _ diff.Applier = (*applier)(nil)

// Apply implements diff.Applier for the mounts of berth's snapshotters.
func (a *applier) Apply(ctx context.Context, desc imagespec.Descriptor, mounts []mount.Mount, _ ...diff.ApplyOpt) (imagespec.Descriptor, error) {
	to, err := disk.UnpackTarget(mounts)
	if err != nil {
		return imagespec.Descriptor{}, err
	}
	if err := a.files.Flusher.Wrote(a.id, to.Root); err != nil {
		return imagespec.Descriptor{}, err
	}
	to.Count = a.entries.count
	chain := a.layers.Rebases.ParentOf(to.Root)
	if chain != "" {
		to.Overlay, to.BelowPending = true, true
	}
	unpacked, err := layerproc.Result{}, layerproc.ErrBelow
	if chain == "" || desc.Size >= worthAhead {
		unpacked, err = a.unpack(ctx, desc, to)
	}
	if errors.Is(err, layerproc.ErrBelow) {
		// No slot is held during the wait: the layer below may need it.
		if err := a.layers.Wait(ctx, chain); err != nil {
			return imagespec.Descriptor{}, err
		}
		to.BelowPending = false
		if to.Below, err = a.layers.StackOf(ctx, chain); err != nil {
			return imagespec.Descriptor{}, err
		}
		unpacked, err = a.unpack(ctx, desc, to)
	}
	if err != nil {
		return imagespec.Descriptor{}, err
	}
	failpoint.Hit(failpoint.ImageApplied)
	a.underway.At(desc.Digest, progress.LayerUnpacked)
	return imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayer, Size: unpacked.Size, Digest: unpacked.Digest}, nil
}

func (a *applier) unpack(ctx context.Context, desc imagespec.Descriptor, to layerproc.Layer) (unpacked layerproc.Result, err error) {
	if err := a.slots.Acquire(ctx, 1); err != nil {
		return unpacked, err
	}
	defer a.slots.Release(1)
	defer a.step.Enter(a.pull)()
	a.underway.At(desc.Digest, progress.LayerUnpacking)
	blob, end, err := a.open(ctx, desc)
	if err != nil {
		return unpacked, err
	}
	defer func() { err = errors.Join(end(), err) }()
	child, err := a.children.take()
	if err != nil {
		return unpacked, err
	}
	defer a.children.giveBack(child)
	unpacked, err = child.Unpack(ctx, to, blob)
	if err != nil && !errors.Is(err, layerproc.ErrBelow) {
		child.Close() // a child is not reused after a failure
	}
	if seal := a.layers.Kind.Seal; err == nil && seal != nil {
		err = seal(ctx, to.Root)
	}
	return unpacked, err
}

// open opens a layer in its compressed form. The caller calls end after it has read the layer.
func (a *applier) open(ctx context.Context, desc imagespec.Descriptor) (blob *os.File, end func() error, err error) {
	if strings.HasSuffix(desc.MediaType, catalog.EncryptedSuffix) {
		return a.decrypted(ctx, desc)
	}
	if _, err := images.DiffCompression(ctx, desc.MediaType); err != nil {
		return nil, nil, fmt.Errorf("open layer of type %s: %w", desc.MediaType, err)
	}
	blob, err = os.Open(a.files.BlobPath(desc.Digest))
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("content %s is lost: %w", desc.Digest, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, nil, err
	}
	return blob, blob.Close, nil
}

// entryLimit bounds the entries in the layers of an image.
type entryLimit struct {
	max  int64
	seen atomic.Int64
}

func (l *entryLimit) count(n int64) error {
	if l.seen.Add(n) > l.max {
		return bounds.Beyond("layers have more than %d entries, which is registry.max_image_entries", l.max)
	}
	return nil
}
