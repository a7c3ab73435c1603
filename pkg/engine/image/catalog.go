package image

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

// catalog owns which images there are: their records on disk, and the index of
// them in memory.
type catalog struct {
	*index
	files  *files
	reader *reader
	// changing is held while records and then the index change, so that both
	// change in the same order. Never during a download.
	changing sync.Mutex
}

func newCatalog(f *files, r *reader, pinned []string) *catalog {
	return &catalog{index: newIndex(newPinPatterns(pinned)), files: f, reader: r}
}

// load fills the index. A record whose content is damaged is removed, so
// that the kubelet pulls the image again. An image that would take too much memory
// is whole: it stays, and can be removed.
func (c *catalog) load(ctx context.Context) error {
	records, err := c.files.images.List(ctx)
	if err != nil {
		return err
	}
	damaged := false
	for _, rec := range records {
		img, err := c.reader.load(ctx, rec.Target)
		if bounds.IsBeyond(err) {
			log.G(ctx).WithError(err).WithField("image", rec.Name).Warn("Image takes too much memory and cannot be used; remove it to free its disk space")
			img, err = c.reader.unusable(ctx, rec.Target, err)
		}
		if err != nil {
			log.G(ctx).WithError(err).WithField("image", rec.Name).Warn("Removing damaged image")
			if err := c.files.images.Delete(ctx, rec.Name, images.DeleteTarget(&rec.Target)); err != nil {
				return err
			}
			damaged = true
			continue
		}
		c.index.put(img, rec.Target.Digest, rec.Name)
	}
	if damaged {
		// The next pull must not find the metadata of content that is not there.
		_, err = c.files.db.GarbageCollect(ctx)
	}
	return err
}

// record makes img known under names: on disk first, with the end of the lease
// that held it, in one transaction; then in memory.
func (c *catalog) record(ctx context.Context, img *Image, target imagespec.Descriptor, lease leases.Lease, names []string) (*Image, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	err := c.files.db.Update(func(tx *bolt.Tx) error {
		tctx := boltutil.WithTransaction(ctx, tx)
		for _, name := range names {
			if err := c.recordName(tctx, name, target); err != nil {
				return err
			}
		}
		return c.files.leases.Delete(tctx, lease)
	})
	if err != nil {
		return nil, fmt.Errorf("record image %s: %w", img.ID, err)
	}
	return c.index.put(img, target.Digest, names...), nil
}

func (c *catalog) recordName(ctx context.Context, name string, target imagespec.Descriptor) error {
	rec := images.Image{Name: name, Target: target}
	_, err := c.files.images.Update(ctx, rec)
	if errdefs.IsNotFound(err) {
		_, err = c.files.images.Create(ctx, rec)
	}
	return err
}

// forget removes the records of an image. Nil when there was none.
func (c *catalog) forget(ctx context.Context, ref string) (*Image, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	img, err := c.index.get(ref)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = c.files.db.Update(func(tx *bolt.Tx) error {
		tctx := boltutil.WithTransaction(ctx, tx)
		for _, name := range c.index.nameList(img.ID) {
			if err := c.files.images.Delete(tctx, name); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("remove image %s: %w", img.ID, err)
	}
	c.index.drop(img.ID)
	return img, nil
}
