// Package catalog lists the images of a store, with their names and records, and reads the
// documents that describe them.
package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"

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

// Catalog owns the list of images: their records on disk, and their index in memory.
type Catalog struct {
	*Index
	files  *disk.Files
	Reader *Reader
	events events.Publisher // may be nil
	// changing is held during a change of the records and then of the index, so that both change in
	// the same order. It is never held during a download.
	changing sync.Mutex
}

// New returns an empty catalog; e may be nil.
func New(f *disk.Files, r *Reader, x *Index, e events.Publisher) *Catalog {
	return &Catalog{Index: x, files: f, Reader: r, events: e}
}

// Load fills the index. A record with missing or damaged content is removed, so that the kubelet
// pulls the image again. An image that would take too much memory stays and can be removed.
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
		// The next pull must not find the metadata of missing content.
		_, err = c.files.DB.GarbageCollect(ctx)
	}
	return err
}

// loadRecord returns false if the record must be removed. If its content cannot be read at the
// moment, it stays without an entry in the index: the content may be whole.
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
		// The pull selected the image by its platform in the index, but recorded the platform of
		// its configuration, which may differ.
		other, otherwise := load(AnyPlatform)
		// The platform of an image that takes too much memory is unknown.
		if otherwise != nil || other.unusable != nil || KindOf(other.Platform) == p {
			img, err = other, otherwise
		}
	}
	if err != nil {
		entry := log.G(ctx).WithError(err).WithFields(log.Fields{"image": rec.Name, "platform": p.String()})
		if _, failed := errors.AsType[syscall.Errno](err); failed || ctx.Err() != nil {
			entry.Warn("Failed to read image; a pull or the next start will retry")
			return true
		}
		entry.Warn("Removing damaged image")
		return false
	}
	c.Index.put(img, p, rec.Target.Digest, rec.Name)
	return true
}

// KubeletLabels are the labels that containerd's CRI gives to images that kubelets pull. Other
// programs look for them.
var KubeletLabels = map[string]string{"io.cri-containerd.image": "managed"}

// Naming is the content of an image's records.
type Naming struct {
	Names  []string
	Target imagespec.Descriptor
	Labels map[string]string
	// Platform is the platform that the image is recorded for.
	Platform Platform
}

// Record records img under n.Names: first on disk, where the same transaction deletes the lease,
// then in memory.
func (c *Catalog) Record(ctx context.Context, img *Image, n Naming, lease leases.Lease) (*Image, error) {
	c.changing.Lock()
	defer c.changing.Unlock()
	return c.recordNow(ctx, img, n, lease)
}

// NameAgain adds names to a stored image. It returns errdefs.ErrNotFound if no usable image has
// that target, and ErrInvalidArgument if the record describes the target differently.
func (c *Catalog) NameAgain(ctx context.Context, n Naming) error {
	// Until the names are recorded, no other name may be removed: the other names keep the image.
	c.changing.Lock()
	defer c.changing.Unlock()
	img, as := c.Index.byTarget(n.Target.Digest)
	if img == nil || img.Usable() != nil {
		return fmt.Errorf("no usable image with digest %s is on this node: %w", n.Target.Digest, errdefs.ErrNotFound)
	}
	if err := c.sameTarget(ctx, n.Target); err != nil {
		return err
	}
	n.Platform = as
	_, err := c.recordNow(ctx, img, n, leases.Lease{})
	return err
}

// sameTarget refuses a descriptor that differs from the recorded descriptor of the same digest.
func (c *Catalog) sameTarget(ctx context.Context, target imagespec.Descriptor) error {
	same, err := c.files.Images.List(ctx, "target.digest=="+target.Digest.String())
	if err != nil || len(same) == 0 {
		return err
	}
	if known := same[0].Target; known.Size != target.Size || known.MediaType != target.MediaType {
		return fmt.Errorf("%s is recorded as %s of %d bytes, not as %.100q of %d bytes: %w", target.Digest, known.MediaType, known.Size, target.MediaType, target.Size, errdefs.ErrInvalidArgument)
	}
	return nil
}

// recordNow is Record for a caller that holds changing. A lease without an id is ignored.
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
			c.publish(ctx, "/images/create", &eventsapi.ImageCreate{Name: name, Labels: n.Labels})
		} else {
			c.publish(ctx, "/images/update", &eventsapi.ImageUpdate{Name: name, Labels: n.Labels})
		}
	}
	return img, nil
}

// recordName keeps the labels that other programs gave to the record.
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

// publish sends an event of a change in a transaction, for which the metadata sends none.
func (c *Catalog) publish(ctx context.Context, topic string, event events.Event) {
	if c.events == nil {
		return
	}
	if err := c.events.Publish(ctx, topic, event); err != nil {
		log.G(ctx).WithError(err).WithField("topic", topic).Debug("Failed to publish event")
	}
}

// Forget removes the image that ref finds, with all its names. It returns nil if ref finds none.
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

// ForgetName removes one record. It returns errdefs.ErrNotFound if the record does not exist or has
// another target. An empty target matches any.
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
		c.publish(ctx, "/images/delete", &eventsapi.ImageDelete{Name: name})
	}
	return nil
}
