package stores

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

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

// ClientContent is the content as clients see and change it.
type ClientContent struct {
	content.Store
	files *disk.Files
	users *contentUsers
	// collect waits for a collection, soon asks for one.
	collect func(ctx context.Context) error
	soon    func()
}

// Writer implements content.Ingester. What is written without a lease may be collected
// at once.
func (c *ClientContent) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if o.Ref == "" {
		return nil, fmt.Errorf("ref is empty; name what is written: %w", errdefs.ErrInvalidArgument)
	}
	w, err := c.Store.Writer(ctx, content.WithRef(disk.ClientRefs+o.Ref), content.WithDescriptor(o.Desc))
	if err != nil {
		return nil, err
	}
	return &clientWriter{w, c.soon}, nil
}

// clientWriter shows a client its own name of what it writes.
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
	defer w.soon() // it may be without a lease
	return w.Writer.Commit(ctx, size, expected, opts...)
}

func asClientStatus(st content.Status) content.Status {
	st.Ref = strings.TrimPrefix(st.Ref, disk.ClientRefs)
	return st
}

// Status implements content.Store. What pulls are writing is shown, too.
func (c *ClientContent) Status(ctx context.Context, ref string) (content.Status, error) {
	st, err := c.Store.Status(ctx, disk.ClientRefs+ref)
	if errdefs.IsNotFound(err) {
		st, err = c.Store.Status(ctx, ref)
	}
	return asClientStatus(st), err
}

// ListStatuses implements content.Store.
func (c *ClientContent) ListStatuses(ctx context.Context, fs ...string) ([]content.Status, error) {
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
func (c *ClientContent) Abort(ctx context.Context, ref string) error {
	err := c.Store.Abort(ctx, disk.ClientRefs+ref)
	if errdefs.IsNotFound(err) {
		if _, pulled := c.Store.Status(ctx, ref); pulled == nil {
			return fmt.Errorf("%.300q is written by a pull of berth's: %w", ref, errdefs.ErrPermissionDenied)
		}
	}
	return err
}

// Delete implements content.Store. No lease of a client holds the content any more, and
// the collector removes it, which alone can tell that nothing else needs it.
func (c *ClientContent) Delete(ctx context.Context, d digest.Digest) error {
	if _, err := c.Store.Info(ctx, d); err != nil {
		return err
	}
	if err := c.release(ctx, d); err != nil {
		return err
	}
	if err := c.collect(ctx); err != nil {
		return err
	}
	if _, err := c.Store.Info(ctx, d); errdefs.IsNotFound(err) {
		return nil
	}
	user, err := c.user(ctx, d)
	if err != nil {
		return err
	}
	return fmt.Errorf("content %s belongs to %s, and goes with it: %w", d, cmp.Or(user, "something that refers to it"), errdefs.ErrFailedPrecondition)
}

// user names who needs content, be it for content that has a label which refers to it.
func (c *ClientContent) user(ctx context.Context, d digest.Digest) (string, error) {
	user, err := c.users.of(ctx, d)
	if err != nil || user != "" {
		return user, err
	}
	var referring []digest.Digest
	err = c.Store.Walk(ctx, func(i content.Info) error {
		for name, value := range i.Labels {
			if strings.HasPrefix(name, collectorLabels+"ref.content") && value == d.String() {
				referring = append(referring, i.Digest)
			}
		}
		return nil
	})
	for _, by := range referring {
		if err == nil && user == "" {
			user, err = c.users.of(ctx, by)
		}
	}
	return user, err
}

// release takes content out of the leases of clients.
func (c *ClientContent) release(ctx context.Context, d digest.Digest) error {
	all, err := c.files.Leases.List(ctx)
	if err != nil {
		return err
	}
	for _, l := range all {
		if !disk.IsClientLease(l) {
			continue
		}
		err := c.files.Leases.DeleteResource(ctx, l, leases.Resource{ID: d.String(), Type: "content"})
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// Update implements content.Store. By labels the collector finds what belongs together:
// clients may add such labels, and change and remove none.
func (c *ClientContent) Update(ctx context.Context, info content.Info, fieldpaths ...string) (content.Info, error) {
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

// referencesOfClients gives references that are not there names which berth does not use: it
// may write its own of the same name meanwhile, and content that it keeps would go. Pure.
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

// clientReference ends the names of references of clients. The collector ignores what
// follows a slash.
const clientReference = "/client"

// checkContentLabels refuses to keep content for ever.
func checkContentLabels(labels map[string]string) error {
	for name := range labels {
		if strings.HasPrefix(name, containerfs.GCRoot) || strings.HasPrefix(name, collectorLabels+"bref.") {
			return fmt.Errorf("label %.100q would keep content that nothing needs; use a lease: %w", name, errdefs.ErrInvalidArgument)
		}
	}
	return checkLabelSizes(labels)
}

type contentUsers struct {
	store Parts

	mu sync.Mutex
	// images says of which image each blob is, as of that many changes of the catalog.
	images map[digest.Digest]string
	as     uint64
}

// of names who needs a blob; empty is nobody.
func (u *contentUsers) of(ctx context.Context, d digest.Digest) (string, error) {
	name, err := u.image(ctx, d)
	if err != nil || name != "" {
		return name, err
	}
	held, err := u.store.Files.Leases.List(ctx)
	if err != nil {
		return "", err
	}
	for _, l := range held {
		if disk.IsClientLease(l) {
			continue
		}
		resources, err := u.store.Files.Leases.ListResources(ctx, l)
		if err != nil && !errdefs.IsNotFound(err) {
			return "", err
		}
		for _, r := range resources {
			if r.Type == "content" && r.ID == d.String() {
				return "an image that is being pulled", nil
			}
		}
	}
	return "", nil
}

func (u *contentUsers) image(ctx context.Context, d digest.Digest) (string, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.store.Catalog.Changes.Load()
	if u.images == nil || u.as != now {
		all, err := u.walk(ctx)
		if err != nil {
			return "", err
		}
		u.images, u.as = all, now
	}
	return u.images[d], nil
}

func (u *contentUsers) walk(ctx context.Context) (map[digest.Digest]string, error) {
	all := map[digest.Digest]string{}
	records, err := u.store.Files.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, rec := range records {
		note := images.HandlerFunc(func(_ context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
			all[desc.Digest] = "image " + rec.Name
			return nil, nil
		})
		children := images.HandlerFunc(func(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
			below, err := u.store.Catalog.Reader.Children(ctx, desc)
			if errdefs.IsNotFound(err) || bounds.IsBeyond(err) { // of another platform, or of no use
				return nil, images.ErrSkipDesc
			}
			return below, err
		})
		if err := images.Walk(ctx, images.Handlers(note, children), rec.Target); err != nil && !errors.Is(err, images.ErrEmptyWalk) {
			return nil, fmt.Errorf("image %s: %w", rec.Name, err)
		}
	}
	return all, nil
}
