package image

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

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/keyedlock"
	"github.com/berth-cri/berth/pkg/step"
)

// unpackConfig has fields of image.Config.
type unpackConfig struct {
	// Downloads is MaxConcurrentDownloads.
	Downloads     int
	DiscardLayers bool
	KeysDir       string
}

// unpacker unpacks layers into snapshotters.
type unpacker struct {
	unpackConfig

	content  content.Store
	blobs    string // the directory of content
	reader   *reader
	slots    *semaphore.Weighted
	children *children
	flusher  *flusher
	// locks has the lock of each blob or layer while it is fetched or unpacked, and
	// of each view while it is made or removed.
	locks *keyedlock.Locks
}

func newUnpacker(f *files, r *reader, c unpackConfig) *unpacker {
	return &unpacker{
		unpackConfig: c, content: f.content, blobs: f.path("content", "blobs"), reader: r, flusher: f.flusher,
		slots: semaphore.NewWeighted(int64(runtime.GOMAXPROCS(0))), locks: keyedlock.New(1),
		children: newChildren(r.limits.MaxUnpackMemory),
	}
}

// close ends the processes that unpack.
func (u *unpacker) close() { u.children.close() }

// unpacking is that of one image.
type unpacking struct {
	*unpack.Unpacker
	// remote says that the snapshotter may know layers by what the image says of them.
	remote bool
	// end is called when no more layers come.
	end func()
}

// begin returns what unpacks layers into a snapshotter while they are fetched. Limit
// bounds the entries of all layers.
func (u *unpacker) begin(ctx context.Context, l *layers, name string, of described, limit int64) (*unpacking, error) {
	id, labels, err := u.flusher.begin()
	if err != nil {
		return nil, err
	}
	end := func() { u.flusher.end(id) }
	var capabilities []string
	if l.kind.rebase {
		capabilities = append(capabilities, snapshots.RebaseCap)
	}
	options := []unpack.UnpackerOpt{
		unpack.WithUnpackPlatform(unpack.Platform{
			// What is unpacked was chosen before; images without a platform are welcome.
			Platform:                platforms.All,
			SnapshotterKey:          name,
			Snapshotter:             l,
			SnapshotterCapabilities: capabilities,
			SnapshotOpts:            labels,
			Applier:                 u.applier(ctx, l, id, limit),
		}),
		// A layer counts from before it is downloaded. What bounds those that are
		// really unpacked are the applier's slots.
		unpack.WithUnpackLimiter(semaphore.NewWeighted(math.MaxInt64)),
		unpack.WithLimiter(semaphore.NewWeighted(int64(u.Downloads))),
		unpack.WithDuplicationSuppressor(u.locks),
	}
	if !l.kind.remote && !u.DiscardLayers || of.wasm {
		// A chain may outlive its image under a running container: the layers'
		// content is then gone although they are unpacked.
		options = append(options, unpack.WithFetchAllContent())
	}
	running, err := unpack.NewUnpacker(ctx, unpackedContent{u.content, u.reader.documents, of.manifest}, options...)
	if err != nil {
		end()
		return nil, err
	}
	return &unpacking{Unpacker: running, remote: l.kind.remote, end: end}, nil
}

// Unpack is unpack.Unpacker's, which makes labels of snapshots of layers' annotations.
func (u *unpacking) Unpack(h images.Handler) images.Handler {
	if u.remote {
		return u.Unpacker.Unpack(h)
	}
	return u.Unpacker.Unpack(images.HandlerFunc(func(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		children, err := h.Handle(ctx, desc)
		for i, child := range children {
			children[i] = withoutSnapshotAnnotations(child)
		}
		return children, err
	}))
}

// applier unpacks layers of one pull, by one unpacking.
func (u *unpacker) applier(ctx context.Context, l *layers, id string, limit int64) *applier {
	return &applier{
		content: u.content, blobs: u.blobs, keysDir: u.KeysDir, children: u.children, entries: &entryLimit{max: limit},
		slots: u.slots, layers: l, pull: ctx, unpacking: &part{name: step.Unpack}, underway: underwayOf(ctx),
		wrote: func(dir string) error { return u.flusher.wrote(id, dir) },
	}
}

// others bounds the blobs that are fetched at the same time and that nobody unpacks: what
// Wasm images have beside layers. Others have none; layers are bounded elsewhere.
func (u *unpacker) others(of described) *semaphore.Weighted {
	if !of.wasm {
		return nil
	}
	return semaphore.NewWeighted(int64(u.Downloads))
}

// unpackStored unpacks an image whose content is in the store: no limit counts for
// it that it had not when it was pulled.
func (u *unpacker) unpackStored(ctx context.Context, l *layers, snapshotter string, img *Image) error {
	if img.ArtifactType != "" {
		return u.unpackArtifact(ctx, l, snapshotter, img, math.MaxInt64)
	}
	done, err := isUnpacked(ctx, l, img.ChainID)
	if done || err != nil {
		return err
	}
	of := described{wasm: isWasm(img.Platform)}
	if of.manifest, err = u.reader.readManifest(ctx, img.manifest, checkManifest); err != nil {
		return err
	}
	running, err := u.begin(ctx, l, snapshotter, of, math.MaxInt64)
	if err != nil {
		return err
	}
	defer running.end()
	dispatchErr := images.Dispatch(ctx, running.Unpack(safely(u.reader.children)), nil, img.manifest)
	if _, err := running.Wait(); err != nil {
		return err
	}
	if dispatchErr != nil {
		return dispatchErr
	}
	done, err = isUnpacked(ctx, l, img.ChainID)
	if err == nil && !done {
		err = fmt.Errorf("layers are missing after unpacking: %w", errdefs.ErrInternal)
	}
	return err
}

func isUnpacked(ctx context.Context, l *layers, chain digest.Digest) (bool, error) {
	if chain == "" {
		return true, nil
	}
	info, err := l.Stat(ctx, chain.String())
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil && info.Kind == snapshots.KindCommitted, err
}

// unpackedContent is the content for containerd's unpacker, which parses whole
// configurations when it wants to: it is given what it reads of them.
type unpackedContent struct {
	content.Store
	documents documents
	// of is the manifest whose configuration it is.
	of imagespec.Manifest
}

func (c unpackedContent) ReaderAt(ctx context.Context, desc imagespec.Descriptor) (content.ReaderAt, error) {
	if !images.IsConfigType(desc.MediaType) {
		return c.Store.ReaderAt(ctx, desc)
	}
	if desc.Size > bounds.MaxStored {
		return nil, bounds.Beyond("configuration %s has %d bytes, more than %d", desc.Digest, desc.Size, int64(bounds.MaxStored))
	}
	done, err := c.documents.begin(ctx, desc.Size)
	if err != nil {
		return nil, err
	}
	defer done()
	text, err := content.ReadBlob(ctx, c.Store, desc)
	if err != nil {
		return nil, err
	}
	var config struct {
		imagespec.Platform
		RootFS imagespec.RootFS `json:"rootfs"`
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	// The unpacker is given the layers of the root filesystem only.
	if config.RootFS.DiffIDs, err = rootDiffIDs(c.of, config.Platform, config.RootFS.DiffIDs); err != nil {
		return nil, err
	}
	text, err = json.Marshal(config)
	return inMemory{bytes.NewReader(text)}, err
}
