package image

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
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
	events events.Publisher // nil if nobody is told
	// changing is held while records and then the index change, so that both
	// change in the same order. Never during a download.
	changing sync.Mutex
	// changes counts what was recorded and forgotten.
	changes atomic.Uint64
}

func newCatalog(f *files, r *reader, c Config) *catalog {
	return &catalog{index: newIndex(newPinPatterns(c.PinnedImages)), files: f, reader: r, events: c.Events}
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

// kubeletLabels are what containerd's CRI gives the records of images that kubelets
// pull. Programs beside it look for them.
var kubeletLabels = map[string]string{"io.cri-containerd.image": "managed"}

// naming is what records of one image say beside its names.
type naming struct {
	names  []string
	target imagespec.Descriptor
	labels map[string]string
}

// record makes img known under names: on disk first, with the end of the lease
// that held it, in one transaction; then in memory.
func (c *catalog) record(ctx context.Context, img *Image, n naming, lease leases.Lease) (*Image, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	created := make([]bool, len(n.names))
	err := c.files.db.Update(func(tx *bolt.Tx) (err error) {
		tctx := boltutil.WithTransaction(ctx, tx)
		for i, name := range n.names {
			if created[i], err = c.recordName(tctx, name, n); err != nil {
				return err
			}
		}
		return c.files.leases.Delete(tctx, lease)
	})
	if err != nil {
		return nil, fmt.Errorf("record image %s: %w", img.ID, err)
	}
	img = c.index.put(img, n.target.Digest, n.names...)
	c.changes.Add(1)
	for i, name := range n.names {
		if created[i] {
			c.tell(ctx, "/images/create", &eventsapi.ImageCreate{Name: name, Labels: n.labels})
		} else {
			c.tell(ctx, "/images/update", &eventsapi.ImageUpdate{Name: name, Labels: n.labels})
		}
	}
	return img, nil
}

// recordName leaves labels alone that others gave to the record.
func (c *catalog) recordName(ctx context.Context, name string, n naming) (created bool, err error) {
	rec := images.Image{Name: name, Target: n.target, Labels: n.labels}
	fields := []string{"target"}
	for label := range n.labels {
		fields = append(fields, "labels."+label)
	}
	_, err = c.files.images.Update(ctx, rec, fields...)
	if errdefs.IsNotFound(err) {
		_, err = c.files.images.Create(ctx, rec)
		return true, err
	}
	return false, err
}

// tell publishes what the metadata does not: it keeps silent inside of transactions.
func (c *catalog) tell(ctx context.Context, topic string, event events.Event) {
	if c.events == nil {
		return
	}
	if err := c.events.Publish(ctx, topic, event); err != nil {
		log.G(ctx).WithError(err).WithField("topic", topic).Debug("Failed to publish event")
	}
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
	names := c.index.nameList(img.ID)
	if err := c.forgetNames(ctx, names); err != nil {
		return nil, fmt.Errorf("remove image %s: %w", img.ID, err)
	}
	return img, nil
}

// forgetName removes one record. errdefs.ErrNotFound when there is none, or when it is
// of another target than the given one (empty: any).
func (c *catalog) forgetName(ctx context.Context, name string, target digest.Digest) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	rec, err := c.files.images.Get(ctx, name)
	if err != nil {
		return err
	}
	if target != "" && rec.Target.Digest != target {
		return fmt.Errorf("image %s has target %s, not %s: %w", name, rec.Target.Digest, target, errdefs.ErrNotFound)
	}
	return c.forgetNames(ctx, []string{name})
}

// forgetNames removes records. The caller holds changing.
func (c *catalog) forgetNames(ctx context.Context, names []string) error {
	err := c.files.db.Update(func(tx *bolt.Tx) error {
		tctx := boltutil.WithTransaction(ctx, tx)
		for _, name := range names {
			if err := c.files.images.Delete(tctx, name); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.index.drop(names...)
	c.changes.Add(1)
	for _, name := range names {
		c.tell(ctx, "/images/delete", &eventsapi.ImageDelete{Name: name})
	}
	return nil
}
