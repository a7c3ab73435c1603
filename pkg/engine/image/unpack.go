package image

import (
	"context"
	"fmt"
	"math"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/semaphore"
)

// unpacker unpacks layers into snapshotters.
type unpacker struct {
	content   content.Store
	children  images.HandlerFunc
	budget    *budget
	applier   diff.Applier
	windows   *windows
	keysDir   string
	downloads int
	// locks has the lock of each blob or layer while it is fetched or unpacked, and
	// of each view while it is made or removed.
	locks keyedLock
}

// unpackConfig says how layers are unpacked.
type unpackConfig struct {
	// keysDir holds the private keys that open encrypted layers.
	keysDir string
	// downloads bounds the layers that one pull downloads at the same time.
	downloads int
}

func newUnpacker(f *files, r *reader, c unpackConfig) *unpacker {
	return &unpacker{
		content: f.content, children: r.children, budget: r.budget,
		applier: safeApplier{&applier{content: f.content, scratch: f.root, portion: defaultPortion, budget: r.budget}},
		windows: newWindows(r.limits.MaxZstdWindow), keysDir: c.keysDir, downloads: c.downloads,
	}
}

// begin returns what unpacks layers into a snapshotter while h fetches them.
// Each layer is flushed to disk before its snapshot is committed: a committed
// snapshot is whole, also after a power cut. Limit bounds the entries of all layers.
func (u *unpacker) begin(ctx context.Context, l *layers, name string, limit int64) (*unpack.Unpacker, error) {
	return unpack.NewUnpacker(ctx, unpackedContent{u.content, u.budget},
		unpack.WithUnpackPlatform(unpack.Platform{
			// What is unpacked was chosen before; images without a platform are welcome.
			Platform:       platforms.All,
			SnapshotterKey: name,
			Snapshotter:    l,
			Applier:        u.applier,
			ApplyOpts:      []diff.ApplyOpt{diff.WithSyncFs(true), withKeys(u.keysDir), withWindows(u.windows), withEntries(limit)},
		}),
		unpack.WithLimiter(semaphore.NewWeighted(int64(u.downloads))),
		unpack.WithDuplicationSuppressor(&u.locks),
		// A chain may outlive its image under a running container: the layers'
		// content is then gone although they are unpacked.
		unpack.WithFetchAllContent(),
	)
}

// unpackStored unpacks an image whose content is in the store: no limit counts for
// it that it had not when it was pulled.
func (u *unpacker) unpackStored(ctx context.Context, l *layers, snapshotter string, img *Image) error {
	if done, err := isUnpacked(ctx, l, img.ChainID); done || err != nil {
		return err
	}
	running, err := u.begin(ctx, l, snapshotter, math.MaxInt64)
	if err != nil {
		return err
	}
	dispatchErr := images.Dispatch(ctx, running.Unpack(safely(u.children)), nil, img.manifest)
	if _, err := running.Wait(); err != nil {
		return err
	}
	if dispatchErr != nil {
		return dispatchErr
	}
	done, err := isUnpacked(ctx, l, img.ChainID)
	if err == nil && !done {
		err = fmt.Errorf("layers are missing after unpacking: %w", errdefs.ErrInternal)
	}
	return err
}

// isUnpacked says whether all layers of a chain are in the snapshotter.
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
