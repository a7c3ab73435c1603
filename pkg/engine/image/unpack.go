package image

import (
	"context"
	"fmt"
	"math"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"golang.org/x/sync/semaphore"
)

// unpacker returns what unpacks layers into a snapshotter while h fetches them.
// Each layer is flushed to disk before its snapshot is committed: a committed
// snapshot is whole, also after a power cut. Limit bounds the entries of all layers.
func (s *Store) unpacker(ctx context.Context, l *layers, name string, limit int64) (*unpack.Unpacker, error) {
	return unpack.NewUnpacker(ctx, unpackedContent{s.content, s.budget},
		unpack.WithUnpackPlatform(unpack.Platform{
			// What is unpacked was chosen before; images without a platform are welcome.
			Platform:       platforms.All,
			SnapshotterKey: name,
			Snapshotter:    l,
			Applier:        s.applier,
			ApplyOpts:      []diff.ApplyOpt{diff.WithSyncFs(true), withKeys(s.cfg.DecryptionKeysDir), withWindows(s.windows), withEntries(limit)},
		}),
		unpack.WithLimiter(semaphore.NewWeighted(int64(s.cfg.MaxConcurrentDownloads))),
		unpack.WithDuplicationSuppressor(&s.unpacking),
		// A chain may outlive its image under a running container: the layers'
		// content is then gone although they are unpacked.
		unpack.WithFetchAllContent(),
	)
}

// unpackLocal unpacks an image whose content is in the store: no limit counts for
// it that it had not when it was pulled.
func (s *Store) unpackLocal(ctx context.Context, l *layers, k viewKey, img *Image) error {
	if done, err := isUnpacked(ctx, l, k); done || err != nil {
		return err
	}
	u, err := s.unpacker(ctx, l, k.snapshotter, math.MaxInt64)
	if err != nil {
		return err
	}
	dispatchErr := images.Dispatch(ctx, u.Unpack(safely(s.children)), nil, img.manifest)
	if _, err := u.Wait(); err != nil {
		return err
	}
	if dispatchErr != nil {
		return dispatchErr
	}
	done, err := isUnpacked(ctx, l, k)
	if err == nil && !done {
		err = fmt.Errorf("layers are missing after unpacking: %w", errdefs.ErrInternal)
	}
	return err
}

// isUnpacked says whether all layers of a chain are in the snapshotter.
func isUnpacked(ctx context.Context, l *layers, k viewKey) (bool, error) {
	if k.chain == "" {
		return true, nil
	}
	info, err := l.Stat(ctx, k.chain.String())
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil && info.Kind == snapshots.KindCommitted, err
}
