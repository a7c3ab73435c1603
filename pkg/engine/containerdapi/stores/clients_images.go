package stores

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// clientImages is the image store of clients.
type clientImages struct {
	images.Store
	of *Clients
}

// Create makes an image of content, and unpacks it so that pods can run it. It records only the
// name that the client gives.
func (c *clientImages) Create(ctx context.Context, img images.Image) (images.Image, error) {
	if _, err := c.Get(ctx, img.Name); err == nil {
		return images.Image{}, fmt.Errorf("image %.300q: %w", img.Name, errdefs.ErrAlreadyExists)
	}
	if err := c.put(ctx, img); err != nil {
		return images.Image{}, err
	}
	return c.Get(ctx, img.Name)
}

// Update changes labels, and the target as in Create.
func (c *clientImages) Update(ctx context.Context, img images.Image, fieldpaths ...string) (images.Image, error) {
	old, err := c.Get(ctx, img.Name)
	if err != nil {
		return images.Image{}, err
	}
	target := len(fieldpaths) == 0 || slices.Contains(fieldpaths, "target")
	labels := slices.DeleteFunc(slices.Clone(fieldpaths), func(path string) bool { return path == "target" })
	if err := checkClientLabels(img.Labels); err != nil {
		return images.Image{}, err
	}
	var changed map[string]string
	var paths []string
	if len(labels) > 0 || len(fieldpaths) == 0 {
		if changed, paths, err = labelChanges(old.Labels, img.Labels, labels); err != nil {
			return images.Image{}, err
		}
	}
	if target && old.Target.Digest != img.Target.Digest {
		if err := c.put(ctx, images.Image{Name: img.Name, Target: img.Target}); err != nil {
			return images.Image{}, err
		}
	}
	if len(paths) == 0 {
		return c.Get(ctx, img.Name)
	}
	return c.Store.Update(ctx, images.Image{Name: img.Name, Labels: changed}, paths...)
}

// Delete removes one name, and with the last name the image; pods keep what they use of it. The
// space is freed in the background, unless opts request a wait.
func (c *clientImages) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	var o images.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	var target digest.Digest
	if o.Target != nil {
		target = o.Target.Digest
	}
	if err := c.of.store.Catalog.ForgetName(ctx, name, target); err != nil {
		return err
	}
	log.G(ctx).WithField("name", name).Info("Image name removed by a client of the containerd API")
	if !o.Synchronous {
		c.of.store.Collector.Kick()
		return nil
	}
	_ = c.of.Collect(ctx) // the name is removed, even if the caller does not wait for the space
	return nil
}

// put records an image with content that is in the store.
func (c *clientImages) put(ctx context.Context, img images.Image) error {
	name, err := catalog.ParseName(img.Name)
	if err != nil {
		return err
	}
	if name.String() != img.Name {
		return fmt.Errorf("image name %.300q is not complete; use %s, as pods do: %w", img.Name, name, errdefs.ErrInvalidArgument)
	}
	if err := catalog.CheckDigest("the image", img.Target); err != nil {
		return err
	}
	if err := checkClientLabels(img.Labels); err != nil {
		return err
	}
	if n := c.of.store.Catalog.NameCount(); n >= maxClientNames {
		return fmt.Errorf("there are %d names of images; remove some: %w", n, errdefs.ErrResourceExhausted)
	}
	s := c.of.store.Archives
	p, err := s.Puller.Plan(pull.Request{Ref: img.Name, Platform: catalog.AnyPlatform})
	if err != nil {
		return err
	}
	// A client that adds a name to an image also passes the image's labels, with berth's own.
	others := maps.Clone(img.Labels)
	maps.DeleteFunc(others, func(name, _ string) bool { return strings.HasPrefix(name, ownLabels) })
	n := catalog.Naming{
		Names: []string{img.Name}, Labels: others,
		Target: imagespec.Descriptor{MediaType: img.Target.MediaType, Digest: img.Target.Digest, Size: img.Target.Size},
	}
	return s.Puller.During(ctx, func(ctx context.Context) error {
		if err := c.of.store.Catalog.NameAgain(ctx, n); !errdefs.IsNotFound(err) {
			return err
		}
		_, err := s.Adopt(ctx, p, n, func(d digest.Digest) error {
			return fmt.Errorf("content %s is missing; write the image's content for this platform first: %w", d, errdefs.ErrFailedPrecondition)
		})
		if err != nil {
			return fmt.Errorf("image %s: %w", img.Name, err)
		}
		log.G(ctx).WithField("name", img.Name).Info("Image added by a client of the containerd API")
		return nil
	})
}

// collectorLabels is the prefix of labels with which content, images and leases refer to content.
const collectorLabels = "containerd.io/gc."

// labelChanges returns the labels that a client's update changes, and their field paths; an empty
// value removes a label. It omits labels that stay, because they may change concurrently, and those
// that clients cannot change: the collector's existing labels, and berth's own. Pure.
func labelChanges(now, asked map[string]string, fieldpaths []string) (labels map[string]string, paths []string, err error) {
	labels = map[string]string{}
	change := func(name, value string) {
		present, is := now[name]
		if strings.HasPrefix(name, ownLabels) || is && strings.HasPrefix(name, collectorLabels) || is && present == value || !is && value == "" {
			return
		}
		if _, twice := labels[name]; !twice {
			paths = append(paths, "labels."+name)
		}
		labels[name] = value
	}
	all := len(fieldpaths) == 0
	for _, path := range fieldpaths {
		name, single := strings.CutPrefix(path, "labels.")
		switch {
		case path == "labels":
			all = true
		case single:
			change(name, asked[name])
		default:
			return nil, nil, fmt.Errorf("field %.100q cannot be changed: %w", path, errdefs.ErrInvalidArgument)
		}
	}
	if all {
		for name, value := range asked {
			change(name, value)
		}
		for name := range now {
			if _, stays := asked[name]; !stays {
				change(name, "")
			}
		}
	}
	slices.Sort(paths)
	merged := map[string]string{}
	maps.Copy(merged, now)
	maps.Copy(merged, labels)
	maps.DeleteFunc(merged, func(_, value string) bool { return value == "" })
	return labels, paths, checkLabelSizes(merged)
}

const ownLabels = "berth.dev/"

// maxClientNames is the number of image names beyond which clients cannot add more: lists of images
// must fit into a kubelet's message limit.
const maxClientNames = 5000

const (
	// maxLabels limits the labels that clients may write to an image, a lease or content.
	maxLabels = 64
	// maxLabelBytes limits the total size of these labels, in bytes.
	maxLabelBytes = 16 << 10
)

// checkLabelSizes limits labels, because each list and event copies them.
func checkLabelSizes(labels map[string]string) error {
	size := 0
	for name, value := range labels {
		size += len(name) + len(value)
	}
	if len(labels) > maxLabels || size > maxLabelBytes {
		return fmt.Errorf("%d labels with %d bytes in total; the limit is %d labels and %d bytes: %w", len(labels), size, maxLabels, maxLabelBytes, errdefs.ErrInvalidArgument)
	}
	return nil
}

// checkClientLabels also rejects the collector's labels: they could remove images of the catalog.
func checkClientLabels(labels map[string]string) error {
	if err := checkLabelSizes(labels); err != nil {
		return err
	}
	for name := range labels {
		if strings.HasPrefix(name, collectorLabels) {
			return fmt.Errorf("label %.100q of an image is for the collector; images stay until they are removed: %w", name, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}
