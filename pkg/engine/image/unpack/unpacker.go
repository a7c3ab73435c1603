// Package unpack unpacks the layers of images into snapshotters.
package unpack

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"runtime"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/engine/keyedlock"
	"github.com/berth-cri/berth/pkg/step"
)

// Config has the fields of image.Config that an Unpacker needs.
type Config struct {
	// Downloads is MaxConcurrentDownloads.
	Downloads     int
	DiscardLayers bool
	KeysDir       string
}

// Unpacker unpacks layers into snapshotters.
type Unpacker struct {
	Config

	files  *disk.Files
	Reader *catalog.Reader
	// slots bounds the layers that are unpacked at the same time.
	slots *semaphore.Weighted
	// children are processes that each unpack one layer at a time.
	children *children
	// Locks has a lock for each blob or layer while it is fetched or unpacked, and for each view
	// while it is made or removed.
	Locks *keyedlock.Locks
}

// New returns an unpacker. The caller closes it.
func New(f *disk.Files, r *catalog.Reader, c Config) *Unpacker {
	return &Unpacker{
		Config: c, files: f, Reader: r,
		slots: semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0))), Locks: keyedlock.New(1),
		children: newChildren(r.Limits.MaxUnpackMemory),
	}
}

// Close ends the processes that unpack.
func (u *Unpacker) Close() { u.children.close() }

// Unpack calls h, which fetches, for target and all content below it, and unpacks the layers into a
// snapshotter. limit bounds the entries of all layers.
func (u *Unpacker) Unpack(ctx context.Context, l *disk.Layers, of catalog.Described, limit int64, h images.Handler, target imagespec.Descriptor) error {
	id, labels, err := u.files.Flusher.Begin()
	if err != nil {
		return err
	}
	defer u.files.Flusher.End(id)
	var capabilities []string
	if l.Kind.Rebase {
		capabilities = append(capabilities, snapshots.RebaseCap)
	}
	options := []unpack.UnpackerOpt{
		unpack.WithUnpackPlatform(unpack.Platform{
			// The platform was selected before; images without one are accepted.
			Platform:                platforms.All,
			SnapshotterKey:          l.Name,
			Snapshotter:             l,
			SnapshotterCapabilities: capabilities,
			SnapshotOpts:            labels,
			Applier:                 u.applier(ctx, l, id, limit),
		}),
		// This limiter would count layers from before their download. The applier's slots bound
		// those that are being unpacked.
		unpack.WithUnpackLimiter(semaphore.NewWeighted(math.MaxInt64)),
		unpack.WithLimiter(semaphore.NewWeighted(int64(u.Downloads))),
		unpack.WithDuplicationSuppressor(u.Locks),
	}
	if !l.Kind.Remote && !u.DiscardLayers || of.Wasm {
		// A running container may keep the chain of a removed image: the layers are unpacked then,
		// but their content is gone.
		options = append(options, unpack.WithFetchAllContent())
	}
	running, err := unpack.NewUnpacker(ctx, unpackedContent{u.files.Content, u.Reader, of.Manifest}, options...)
	if err != nil {
		return err
	}
	if !l.Kind.Remote {
		h = withoutSnapshotAnnotations(h)
	}
	// Wasm images have blobs beside layers, which containerd's unpacker does not bound.
	var others *semaphore.Weighted
	if of.Wasm {
		others = semaphore.NewWeighted(int64(u.Downloads))
	}
	dispatchErr := images.Dispatch(ctx, running.Unpack(h), others, target)
	if _, err := running.Wait(); err != nil {
		return err
	}
	return dispatchErr
}

// withoutSnapshotAnnotations keeps images from labelling the snapshots of this node's own
// snapshotters: containerd's unpacker turns annotations of layers into labels.
func withoutSnapshotAnnotations(h images.Handler) images.Handler {
	return images.HandlerFunc(func(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		children, err := h.Handle(ctx, desc)
		for i, child := range children {
			children[i] = catalog.WithoutSnapshotAnnotations(child)
		}
		return children, err
	})
}

func (u *Unpacker) applier(ctx context.Context, l *disk.Layers, id string, limit int64) *applier {
	return &applier{
		Unpacker: u, id: id, entries: &entryLimit{max: limit}, layers: l,
		pull: ctx, step: &progress.Step{Name: step.Unpack}, underway: progress.From(ctx),
	}
}

// UnpackStored unpacks an image from the content store, if necessary.
func (u *Unpacker) UnpackStored(ctx context.Context, l *disk.Layers, img *catalog.Image, limit int64) error {
	if img.ArtifactType != "" {
		return u.unpackArtifact(ctx, l, img, limit)
	}
	done, err := IsUnpacked(ctx, l, img.ChainID)
	if done || err != nil {
		return err
	}
	of := catalog.Described{Wasm: catalog.IsWasm(img.Platform)}
	if of.Manifest, err = u.Reader.ReadManifest(ctx, img.Manifest, catalog.CheckManifest); err != nil {
		return err
	}
	if err := u.Unpack(ctx, l, of, limit, disk.Safely(u.Reader.Children), img.Manifest); err != nil {
		return err
	}
	done, err = IsUnpacked(ctx, l, img.ChainID)
	if err == nil && !done {
		err = fmt.Errorf("layers are missing after unpacking: %w", errdefs.ErrInternal)
	}
	return err
}

// IsUnpacked reports whether a snapshotter has all layers of a chain.
func IsUnpacked(ctx context.Context, l *disk.Layers, chain digest.Digest) (bool, error) {
	if chain == "" {
		return true, nil
	}
	info, err := l.Stat(ctx, chain.String())
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil && info.Kind == snapshots.KindCommitted, err
}

// unpackedContent is the content for containerd's unpacker, which decodes whole configurations
// without a limit: it gets only the fields that it reads.
type unpackedContent struct {
	content.Store
	reader *catalog.Reader
	// of is the image's manifest.
	of imagespec.Manifest
}

func (c unpackedContent) ReaderAt(ctx context.Context, desc imagespec.Descriptor) (content.ReaderAt, error) {
	if !images.IsConfigType(desc.MediaType) {
		return c.Store.ReaderAt(ctx, desc)
	}
	var config struct {
		imagespec.Platform
		RootFS imagespec.RootFS `json:"rootfs"`
	}
	err := c.reader.ReadJSON(ctx, desc, &config, func() (err error) {
		// The unpacker gets the layers of the root filesystem only.
		config.RootFS.DiffIDs, err = catalog.RootDiffIDs(c.of, config.Platform, config.RootFS.DiffIDs)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	text, err := json.Marshal(config)
	return catalog.InMemory{Reader: bytes.NewReader(text)}, err
}
