// Package catalog knows which images there are: their names and records, and what their
// documents describe.
package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

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
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// Catalog owns which images there are: their records on disk, and the index of
// them in memory.
type Catalog struct {
	*Index
	files  *disk.Files
	Reader *Reader
	events events.Publisher // nil if nobody is told
	// changing is held while records and then the index change, so that both
	// change in the same order. Never during a download.
	changing sync.Mutex
}

// New returns an empty one; e may be nil.
func New(f *disk.Files, r *Reader, x *Index, e events.Publisher) *Catalog {
	return &Catalog{Index: x, files: f, Reader: r, events: e}
}

// Load fills the index. A record whose content is damaged is removed, so
// that the kubelet pulls the image again. An image that would take too much memory
// is whole: it stays, and can be removed.
func (c *Catalog) Load(ctx context.Context) error {
	records, err := c.files.Images.List(ctx)
	if err != nil {
		return err
	}
	damaged := false
	for _, rec := range records {
		if c.loadRecord(ctx, rec) {
			continue
		}
		damaged = true
		if err := c.files.Images.Delete(ctx, rec.Name, images.DeleteTarget(&rec.Target)); err != nil {
			return err
		}
	}
	if damaged {
		// The next pull must not find the metadata of content that is not there.
		_, err = c.files.DB.GarbageCollect(ctx)
	}
	return err
}

func (c *Catalog) loadRecord(ctx context.Context, rec images.Image) bool {
	p := recordedPlatform(rec.Labels)
	load := func(p Platform) (*Image, error) {
		img, err := c.Reader.Load(ctx, rec.Target, p)
		if bounds.IsBeyond(err) {
			log.G(ctx).WithError(err).WithField("image", rec.Name).Warn("Image takes too much memory and cannot be used; remove it to free its disk space")
			return c.Reader.unusable(ctx, rec.Target, p, err)
		}
		return img, err
	}
	img, err := load(p)
	if errdefs.IsNotFound(err) {
		// It may have been picked by what the index says, and recorded by what it says itself.
		other, otherwise := load(AnyPlatform)
		// The platform of an image that takes too much memory is unknown.
		if otherwise == nil && (other.unusable != nil || KindOf(other.Platform) == p) {
			img, err = other, nil
		}
	}
	if err != nil {
		log.G(ctx).WithError(err).WithFields(log.Fields{"image": rec.Name, "platform": p.String()}).Warn("Removing damaged image")
		return false
	}
	c.Index.put(img, p, rec.Target.Digest, rec.Name)
	return true
}

// KubeletLabels are what containerd's CRI gives the records of images that kubelets
// pull. Programs beside it look for them.
var KubeletLabels = map[string]string{"io.cri-containerd.image": "managed"}

// Naming is what records of one image say beside its names.
type Naming struct {
	Names  []string
	Target imagespec.Descriptor
	Labels map[string]string
	// Platform is what the image is recorded as.
	Platform Platform
}

// Record makes img known under names: on disk first, with the end of the lease
// that held it, in one transaction; then in memory.
func (c *Catalog) Record(ctx context.Context, img *Image, n Naming, lease leases.Lease) (*Image, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	return c.recordNow(ctx, img, n, lease)
}

// NameAgain gives the image of a target one more name. errdefs.ErrNotFound if there is
// none that can be used, ErrInvalidArgument if the target is described as something else.
func (c *Catalog) NameAgain(ctx context.Context, n Naming) error {
	// Until it is recorded no other name may go: the image stays by those.
	c.changing.Lock()
	defer c.changing.Unlock()
	img, as := c.Index.byTarget(n.Target.Digest)
	if img == nil || img.Usable() != nil {
		return fmt.Errorf("no image of %s is here: %w", n.Target.Digest, errdefs.ErrNotFound)
	}
	if err := c.sameTarget(ctx, n.Target); err != nil {
		return err
	}
	n.Platform = as
	_, err := c.recordNow(ctx, img, n, leases.Lease{})
	return err
}

// sameTarget refuses what would not be found again under its own digest.
func (c *Catalog) sameTarget(ctx context.Context, target imagespec.Descriptor) error {
	same, err := c.files.Images.List(ctx, "target.digest=="+target.Digest.String())
	if err != nil || len(same) == 0 {
		return err
	}
	if known := same[0].Target; known.Size != target.Size || known.MediaType != target.MediaType {
		return fmt.Errorf("%s is %s of %d bytes, not %.100q of %d: %w", target.Digest, known.MediaType, known.Size, target.MediaType, target.Size, errdefs.ErrInvalidArgument)
	}
	return nil
}

// recordNow is record, whose caller holds changing. A lease without an id is none.
func (c *Catalog) recordNow(ctx context.Context, img *Image, n Naming, lease leases.Lease) (*Image, error) {
	created := make([]bool, len(n.Names))
	err := c.files.DB.Update(func(tx *bolt.Tx) (err error) {
		tctx := boltutil.WithTransaction(ctx, tx)
		for i, name := range n.Names {
			if created[i], err = c.recordName(tctx, name, n); err != nil {
				return err
			}
		}
		if lease.ID == "" {
			return nil
		}
		return c.files.Leases.Delete(tctx, lease)
	})
	if err != nil {
		return nil, fmt.Errorf("record image %s: %w", img.ID, err)
	}
	img = c.Index.put(img, n.Platform, n.Target.Digest, n.Names...)
	for i, name := range n.Names {
		if created[i] {
			c.tell(ctx, "/images/create", &eventsapi.ImageCreate{Name: name, Labels: n.Labels})
		} else {
			c.tell(ctx, "/images/update", &eventsapi.ImageUpdate{Name: name, Labels: n.Labels})
		}
	}
	return img, nil
}

// recordName leaves labels alone that others gave to the record.
func (c *Catalog) recordName(ctx context.Context, name string, n Naming) (created bool, err error) {
	labels := map[string]string{}
	maps.Copy(labels, n.Labels)
	labels[platformLabel] = string(n.Platform)
	rec := images.Image{Name: name, Target: n.Target, Labels: labels}
	fields := []string{"target"}
	for label := range labels {
		fields = append(fields, "labels."+label)
	}
	_, err = c.files.Images.Update(ctx, rec, fields...)
	if errdefs.IsNotFound(err) {
		if labels[platformLabel] == "" {
			delete(labels, platformLabel)
		}
		_, err = c.files.Images.Create(ctx, rec)
		return true, err
	}
	return false, err
}

// tell publishes what the metadata does not: it keeps silent inside of transactions.
func (c *Catalog) tell(ctx context.Context, topic string, event events.Event) {
	if c.events == nil {
		return
	}
	if err := c.events.Publish(ctx, topic, event); err != nil {
		log.G(ctx).WithError(err).WithField("topic", topic).Debug("Failed to publish event")
	}
}

// Forget removes the image that ref finds, with all its names. Nil is none.
func (c *Catalog) Forget(ctx context.Context, ref string) (*Image, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	img, err := c.Index.Get(ref)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := c.forgetNames(ctx, slices.Concat(img.RepoTags, img.RepoDigests)); err != nil {
		return nil, fmt.Errorf("remove image %s: %w", ref, err)
	}
	return img, nil
}

// ForgetName removes one record. errdefs.ErrNotFound when there is none, or when it is
// of another target than the given one (empty: any).
func (c *Catalog) ForgetName(ctx context.Context, name string, target digest.Digest) error {
	c.changing.Lock()
	defer c.changing.Unlock()
	rec, err := c.files.Images.Get(ctx, name)
	if err != nil {
		return err
	}
	if target != "" && rec.Target.Digest != target {
		return fmt.Errorf("image %s has target %s, not %s: %w", name, rec.Target.Digest, target, errdefs.ErrNotFound)
	}
	return c.forgetNames(ctx, []string{name})
}

// forgetNames removes records. The caller holds changing.
func (c *Catalog) forgetNames(ctx context.Context, names []string) error {
	err := c.files.DB.Update(func(tx *bolt.Tx) error {
		tctx := boltutil.WithTransaction(ctx, tx)
		for _, name := range names {
			if err := c.files.Images.Delete(tctx, name); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.Index.drop(names...)
	for _, name := range names {
		c.tell(ctx, "/images/delete", &eventsapi.ImageDelete{Name: name})
	}
	return nil
}
