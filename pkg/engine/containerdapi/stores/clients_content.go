package stores

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// clientContent is the content store of clients.
type clientContent struct {
	content.Store
	of *Clients
}

// Writer implements content.Ingester. Content that is written without a lease may be collected at
// once.
func (c *clientContent) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if o.Ref == "" {
		return nil, fmt.Errorf("ref is empty; choose a name for what is written: %w", errdefs.ErrInvalidArgument)
	}
	w, err := c.Store.Writer(ctx, content.WithRef(disk.ClientRefs+o.Ref), content.WithDescriptor(o.Desc))
	if err != nil {
		return nil, err
	}
	return &clientWriter{w, c.of.collectSoon}, nil
}

// clientWriter reports the ref that the client chose.
type clientWriter struct {
	content.Writer
	soon func()
}

func (w *clientWriter) Status() (content.Status, error) {
	st, err := w.Writer.Status()
	return asClientStatus(st), err
}

func (w *clientWriter) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	var info content.Info
	for _, opt := range opts {
		if err := opt(&info); err != nil {
			return err
		}
	}
	if err := checkContentLabels(info.Labels); err != nil {
		return err
	}
	defer w.soon() // the content may have no lease
	return w.Writer.Commit(ctx, size, expected, opts...)
}

func asClientStatus(st content.Status) content.Status {
	st.Ref = strings.TrimPrefix(st.Ref, disk.ClientRefs)
	return st
}

// Status implements content.Store. It includes the writes of pulls.
func (c *clientContent) Status(ctx context.Context, ref string) (content.Status, error) {
	st, err := c.Store.Status(ctx, disk.ClientRefs+ref)
	if errdefs.IsNotFound(err) {
		st, err = c.Store.Status(ctx, ref)
	}
	return asClientStatus(st), err
}

// ListStatuses implements content.Store.
func (c *clientContent) ListStatuses(ctx context.Context, fs ...string) ([]content.Status, error) {
	matches, err := filters.ParseAll(fs...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	all, err := c.Store.ListStatuses(ctx)
	if err != nil {
		return nil, err
	}
	var shown []content.Status
	for _, st := range all {
		st = asClientStatus(st)
		if matches.Match(filters.AdapterFunc(func(path []string) (string, bool) {
			return st.Ref, slices.Equal(path, []string{"ref"})
		})) {
			shown = append(shown, st)
		}
	}
	return shown, nil
}

// Abort implements content.Store.
func (c *clientContent) Abort(ctx context.Context, ref string) error {
	err := c.Store.Abort(ctx, disk.ClientRefs+ref)
	if errdefs.IsNotFound(err) {
		if _, pulled := c.Store.Status(ctx, ref); pulled == nil {
			return fmt.Errorf("%.300q is being written by a pull: %w", ref, errdefs.ErrPermissionDenied)
		}
	}
	return err
}

// Delete implements content.Store. It removes the content from clients' leases. The collector then
// removes the content itself, unless other references are left.
func (c *clientContent) Delete(ctx context.Context, d digest.Digest) error {
	if _, err := c.Store.Info(ctx, d); err != nil {
		return err
	}
	if err := c.release(ctx, d); err != nil {
		return err
	}
	if err := c.of.Collect(ctx); err != nil {
		return err
	}
	if _, err := c.Store.Info(ctx, d); errdefs.IsNotFound(err) {
		return nil
	}
	user, err := c.user(ctx, d)
	if err != nil {
		return err
	}
	return fmt.Errorf("content %s belongs to %s, and is removed with it: %w", d, cmp.Or(user, "something that refers to it"), errdefs.ErrFailedPrecondition)
}

// user names what uses content, directly or through other content with a label that refers to it.
func (c *clientContent) user(ctx context.Context, d digest.Digest) (string, error) {
	needed := []digest.Digest{d}
	err := c.Store.Walk(ctx, func(i content.Info) error {
		for name, value := range i.Labels {
			if strings.HasPrefix(name, collectorLabels+"ref.content") && value == d.String() {
				needed = append(needed, i.Digest)
			}
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if user, err := c.image(ctx, needed); err != nil || user != "" {
		return user, err
	}
	all, err := c.of.store.Files.Leases.List(ctx)
	if err != nil {
		return "", err
	}
	for _, l := range slices.DeleteFunc(all, disk.IsClientLease) {
		held, err := c.of.store.Files.Leases.ListResources(ctx, l)
		if err != nil && !errdefs.IsNotFound(err) {
			return "", err
		}
		for _, r := range held {
			if r.Type == "content" && slices.Contains(needed, digest.Digest(r.ID)) {
				return "an image that is being pulled", nil
			}
		}
	}
	return "", nil
}

// image returns the name of an image that contains one of the blobs, or the empty string.
func (c *clientContent) image(ctx context.Context, blobs []digest.Digest) (string, error) {
	records, err := c.of.store.Files.Images.List(ctx)
	if err != nil {
		return "", err
	}
	for _, rec := range records {
		found := false
		walk := images.HandlerFunc(func(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
			found = found || slices.Contains(blobs, desc.Digest)
			below, err := c.of.store.Catalog.Reader.Children(ctx, desc)
			if errdefs.IsNotFound(err) || bounds.IsBeyond(err) { // of another platform, or unusable
				return nil, images.ErrSkipDesc
			}
			return below, err
		})
		if err := images.Walk(ctx, walk, rec.Target); err != nil {
			return "", fmt.Errorf("image %s: %w", rec.Name, err)
		}
		if found {
			return "image " + rec.Name, nil
		}
	}
	return "", nil
}

// release removes content from the leases of clients.
func (c *clientContent) release(ctx context.Context, d digest.Digest) error {
	all, err := c.of.store.Files.Leases.List(ctx)
	if err != nil {
		return err
	}
	for _, l := range all {
		if !disk.IsClientLease(l) {
			continue
		}
		err := c.of.store.Files.Leases.DeleteResource(ctx, l, leases.Resource{ID: d.String(), Type: "content"})
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// Update implements content.Store. The collector follows references in labels: clients may add such
// labels, but not change or remove any.
func (c *clientContent) Update(ctx context.Context, info content.Info, fieldpaths ...string) (content.Info, error) {
	if err := checkContentLabels(info.Labels); err != nil {
		return content.Info{}, err
	}
	now, err := c.Store.Info(ctx, info.Digest)
	if err != nil {
		return content.Info{}, err
	}
	asked, fieldpaths := referencesOfClients(now.Labels, info.Labels, fieldpaths)
	labels, paths, err := labelChanges(now.Labels, asked, fieldpaths)
	if err != nil || len(paths) == 0 {
		return now, err
	}
	return c.Store.Update(ctx, content.Info{Digest: info.Digest, Labels: labels}, paths...)
}

// referencesOfClients renames new references of clients to names that berth does not use. Otherwise
// a client could replace a reference of berth, and the content would be collected. Pure.
func referencesOfClients(now, asked map[string]string, fieldpaths []string) (map[string]string, []string) {
	rename := func(name string) string {
		if _, is := now[name]; is || !strings.HasPrefix(name, collectorLabels+"ref.") {
			return name
		}
		return strings.TrimSuffix(name, clientReference) + clientReference
	}
	labels := make(map[string]string, len(asked))
	for name, value := range asked {
		labels[rename(name)] = value
	}
	paths := slices.Clone(fieldpaths)
	for i, path := range paths {
		if name, single := strings.CutPrefix(path, "labels."); single {
			paths[i] = "labels." + rename(name)
		}
	}
	return labels, paths
}

// clientReference is the suffix of clients' references. The collector ignores the part after a
// slash.
const clientReference = "/client"

// checkContentLabels rejects labels that keep content for ever, or exceed checkLabelSizes.
func checkContentLabels(labels map[string]string) error {
	for name := range labels {
		if strings.HasPrefix(name, containerfs.GCRoot) || strings.HasPrefix(name, collectorLabels+"bref.") {
			return fmt.Errorf("label %.100q would keep content that nothing needs; use a lease: %w", name, errdefs.ErrInvalidArgument)
		}
	}
	return checkLabelSizes(labels)
}
