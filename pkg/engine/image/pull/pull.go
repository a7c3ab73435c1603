// Package pull brings images from registries into a store.
package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/engine/image/registry"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
	"github.com/berth-cri/berth/pkg/step"
)

// Request says what to pull and how.
type Request struct {
	// Ref is an image name as a pod spec has it.
	Ref string
	// Auth are the credentials; nil is anonymous.
	Auth *runtimeapi.AuthConfig
	// Snapshotter is where to unpack; empty is the default.
	Snapshotter string
	// Platform says which image is wanted of those that the name may stand for.
	Platform catalog.Platform
	// PlainHTTP asks the registry without TLS, unless its hosts.toml has another way.
	PlainHTTP bool
}

// Config has fields of image.Config.
type Config struct {
	HostsDir  string
	Verifiers Verifiers
	// ProgressTimeout is PullProgressTimeout.
	ProgressTimeout time.Duration
}

// DefaultProgressTimeout is that of a store whose configuration has none.
const DefaultProgressTimeout = 5 * time.Minute

// Puller brings images into a store.
type Puller struct {
	cfg      Config
	verifier *bindir.ImageVerifier // nil if any image may be pulled
	flights  flights
	Files    *disk.Files
	Reader   *catalog.Reader
	Catalog  *catalog.Catalog
	unpacker *unpack.Unpacker
	views    *containerfs.Views
	Work     containerfs.Work

	Interrupted *interrupted
	Underway    progress.Pulls
	// Incomplete has the IDs of images of which a container lacked something that could
	// not be fetched: a pull is asked for until it succeeds.
	Incomplete sync.Map
	// Ahead bounds the parts of layers that are in memory before they are needed.
	Ahead *semaphore.Weighted

	// open ends with Close. closing orders that and further additions to running.
	open    context.Context
	end     context.CancelFunc
	closing sync.Mutex
	running sync.WaitGroup
}

// maxAhead is how many those may be: 16 MiB.
const maxAhead = (16 << 20) / registry.PartSize

// New returns a puller. errdefs.ErrInvalidArgument for verifiers without a timeout.
func New(c Config, k *catalog.Catalog, v *containerfs.Views) (*Puller, error) {
	verifier, err := c.Verifiers.verifier()
	if err != nil {
		return nil, err
	}
	s := &Puller{
		cfg: c, verifier: verifier, flights: flights{running: map[string]*flight{}}, Files: v.Files, Reader: k.Reader, Catalog: k, unpacker: v.Unpacker, views: v, Work: v.Work,
		Interrupted: &interrupted{files: v.Files, collector: v.Work.Collector}, Ahead: semaphore.NewWeighted(maxAhead),
	}
	s.open, s.end = context.WithCancel(context.Background())
	return s, nil
}

// ErrClosing is the error, or the cause of the end, of what the store is closed for.
var ErrClosing = fmt.Errorf("the image store is closing: %w", errdefs.ErrUnavailable)

// During calls f with a context that ends with the store. A panic of f is its error.
func (s *Puller) During(ctx context.Context, f func(ctx context.Context) error) (err error) {
	s.closing.Lock()
	closed := s.open.Err() != nil
	if !closed {
		s.running.Add(1)
	}
	s.closing.Unlock()
	if closed {
		return ErrClosing
	}
	defer s.running.Done()
	ctx, cancel := context.WithCancelCause(disk.InNamespace(ctx))
	defer cancel(nil)
	defer context.AfterFunc(s.open, func() { cancel(ErrClosing) })()
	defer disk.Caught(ctx, &err)
	return f(ctx)
}

// Close interrupts all calls of During, and waits for them.
func (s *Puller) Close() {
	s.closing.Lock()
	s.end()
	s.closing.Unlock()
	s.running.Wait()
}

// Pull brings an image into the store, unpacks it, and returns it. The registry
// is asked every time, with the given credentials, even if everything is there
// already; what is there is not downloaded again.
//
// Callers with the same name, credentials, snapshotter and platform share one download. A
// caller whose ctx ends gets ctx's error at once; the download ends with its
// last caller. Errors carry an errdefs class, no secret, and what to do. Those
// of class ErrUnknown begin with "RegistryUnavailable" or, if a verifier did not
// let the image pass, with "SignatureValidationFailed", for the kubelet.
func (s *Puller) Pull(ctx context.Context, r Request) (*catalog.Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("pull %s: %w", r.Ref, err)
	}
	p, err := s.Plan(r)
	if err != nil {
		return nil, err
	}
	img, err := s.flights.do(ctx, p.key(), func(ctx context.Context) (img *catalog.Image, err error) {
		err = s.During(ctx, func(ctx context.Context) error {
			img, err = s.fly(ctx, p)
			return err
		})
		return img, err
	})
	if errors.Is(err, ErrClosing) {
		return nil, fmt.Errorf("pull %s: %w", p.Name, err)
	}
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("pull %s: %w", p.Name, ctx.Err())
	}
	return img, err
}

// Planned is a checked Request.
type Planned struct {
	Name      reference.Named
	creds     *registry.Credentials
	Layers    *disk.Layers
	platform  catalog.Platform
	plainHTTP bool
}

// Plan checks a request.
func (s *Puller) Plan(r Request) (Planned, error) {
	name, err := catalog.ParseName(r.Ref)
	if err != nil {
		return Planned{}, err
	}
	creds, err := registry.ParseAuth(r.Auth)
	if err != nil {
		return Planned{}, fmt.Errorf("pull %s: %w", name, err)
	}
	l, err := s.Files.LayersOf(r.Snapshotter)
	if err != nil {
		return Planned{}, fmt.Errorf("pull %s: %w", name, err)
	}
	return Planned{Name: name, creds: creds, Layers: l, platform: r.Platform, plainHTTP: r.PlainHTTP}, nil
}

// key is equal for pulls that may share a download. It holds no secret.
func (p Planned) key() string {
	return fmt.Sprintf("%q %q %q %t %q", p.Name, p.Layers.Name, p.platform, p.plainHTTP, p.creds.Key())
}

func (p Planned) image() string {
	text := fmt.Sprintf("%q %q", p.Name, p.Layers.Name)
	if p.platform != catalog.NodePlatform {
		text += fmt.Sprintf(" %q", p.platform)
	}
	return digest.FromString(text).Encoded()
}

// fly is one download, for all who share it.
func (s *Puller) fly(ctx context.Context, p Planned) (*catalog.Image, error) {
	start := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	known, end := s.Underway.Begin(p.Name.String(), p.Layers.Name)
	defer end()
	ctx = progress.With(ctx, known)
	clean := registry.NewRedactor(p.creds)
	ctx = clean.Logger(ctx)
	watched := &registry.Progress{Total: &s.Underway.Fetched}
	go watched.Watch(ctx, s.cfg.ProgressTimeout, cancel)
	img, err := s.download(ctx, p, watched)
	if err != nil {
		host := reference.Domain(p.Name)
		return nil, explainPull(pullFailure{
			ref: p.Name.String(), host: host, hostsDir: s.cfg.HostsDir, root: s.Files.Root,
			verifiers: s.cfg.Verifiers.BinDir, clean: clean, cause: context.Cause(ctx), err: err,
		})
	}
	s.Incomplete.Delete(img.ID)
	fields := log.Fields{
		"image": img.ID, "name": p.Name.String(), "snapshotter": p.Layers.Name,
		"bytes": watched.Bytes(), "duration": time.Since(start),
	}
	for _, part := range step.Of(ctx) {
		fields[part.Name] = part.Took
	}
	log.G(ctx).WithFields(fields).Info("Image pulled")
	return img, nil
}

func (s *Puller) download(ctx context.Context, p Planned, watched *registry.Progress) (*catalog.Image, error) {
	// A pull that may stall for ever has a rate all the same.
	window := cmp.Or(max(s.cfg.ProgressTimeout, 0), DefaultProgressTimeout)
	from := registry.New(ctx, registry.Options{
		HostsDir: s.cfg.HostsDir, Credentials: p.creds, Limits: s.Reader.Limits, Window: window, Progress: watched,
		Connections: s.unpacker.Downloads, Ahead: s.Ahead, PlainHTTP: p.plainHTTP,
	})
	defer from.Close()
	resolving, end := step.Begin(ctx, step.Resolve)
	target, err := from.Resolve(resolving, p.Name.String())
	if end(err); err != nil {
		return nil, &resolveError{err}
	}
	if err := catalog.CheckDocument(s.Reader.Limits, "manifest", target); err != nil {
		return nil, err
	}
	if err := s.verify(ctx, p.Name.String(), target); err != nil {
		return nil, err
	}
	if img := s.already(ctx, p, target); img != nil {
		return img, nil
	}
	fetcher, err := from.Fetcher(ctx, p.Name.String())
	if err != nil {
		return nil, err
	}
	img, again, err := s.attempt(ctx, p, target, fetcher)
	if err != nil && again {
		log.G(ctx).WithError(err).Info("Discarding damaged or partial content; restarting pull")
		img, _, err = s.attempt(ctx, p, target, fetcher)
	}
	return img, err
}

// attempt brings in what is missing of an image, and makes it known. After an error
// again says that the reason may be what an interrupted pull has left, or what was damaged
// since: any registry can have sent the beginning of a layer.
func (s *Puller) attempt(ctx context.Context, p Planned, target imagespec.Descriptor, f *registry.Fetcher) (_ *catalog.Image, again bool, err error) {
	names, err := catalog.RecordNames(p.Name, target.Digest)
	if err != nil {
		return nil, false, err
	}
	leased, lease, resumed, err := s.Interrupted.lease(ctx, p.image())
	if err != nil {
		return nil, false, err
	}
	img, err := s.BringIn(leased, p, Source{Target: target, Fetch: images.Handlers(images.HandlerFunc(s.dropDamaged), remotes.FetchHandler(newSourced(s.Files.Content, p.Name), f)), Expect: f.Expect}, lease)
	if err == nil {
		failpoint.Hit(failpoint.ImageUnpacked)
		n := catalog.Naming{Names: names, Target: target, Labels: catalog.KubeletLabels}
		img, err = s.PublishAs(ctx, p, img, n, lease)
	}
	if err == nil {
		return img, false, nil
	}
	if wasInterrupted(context.Cause(ctx), err) {
		s.Interrupted.Keep(context.WithoutCancel(ctx), p.image(), lease)
		return nil, false, err
	}
	again = !disk.IsNoSpace(err) && !bounds.IsBeyond(err) && (resumed || s.dropDamagedOf(leased, p, target))
	s.abandon(ctx, lease, err)
	return nil, again, err
}

// dropDamagedOf drops what is damaged of an image that could not be unpacked, and says
// whether there was any.
func (s *Puller) dropDamagedOf(ctx context.Context, p Planned, target imagespec.Descriptor) bool {
	img, err := s.Reader.Load(ctx, target, p.platform)
	if err != nil {
		return false
	}
	whole := s.ContentWhole(ctx, img, true, target)
	return s.views.DropLost(ctx, s.views.KeyOf(p.Layers.Name, img.ChainID), img) || !whole
}

// dropDamaged has what is damaged fetched, too.
func (s *Puller) dropDamaged(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
	_, err := s.Files.DropDamaged(ctx, desc, catalog.IsDocument(desc.MediaType))
	return nil, err
}

// already returns the image if target is in the store, under this name, whole and
// unpacked: a pod whose pull policy is Always then costs no disk write. What is damaged
// is dropped.
func (s *Puller) already(ctx context.Context, p Planned, target imagespec.Descriptor) *catalog.Image {
	img := s.Catalog.Current(p.Name.String(), target.Digest, p.platform)
	if img == nil || img.Usable() != nil {
		return nil
	}
	if p.platform == catalog.AnyPlatform && img.Manifest.Digest != target.Digest {
		return nil // an index may have one that is preferred
	}
	if !s.ContentWhole(ctx, img, false, target) {
		return nil
	}
	k := s.views.KeyOf(p.Layers.Name, img.ChainID)
	l := s.Files.Layers[k.Snapshotter]
	if l.Kind.Layered {
		if s.views.Get(k) == nil {
			return nil
		}
		if !s.views.Whole(k) {
			s.views.DropLost(ctx, k, img)
			return nil
		}
		return img
	}
	if done, err := unpack.IsUnpacked(ctx, l, k.Chain); err != nil || !done {
		return nil
	}
	return img
}

// Source is where an image comes from.
type Source struct {
	Target imagespec.Descriptor
	// Fetch brings what a descriptor stands for into the content store.
	Fetch images.HandlerFunc
	// Expect is told which layers will be fetched.
	Expect func(layers []imagespec.Descriptor)
}

// BringIn fetches and unpacks under a lease, and reads what came.
func (s *Puller) BringIn(ctx context.Context, p Planned, from Source, lease leases.Lease) (*catalog.Image, error) {
	before, err := s.Files.EntriesOf(ctx, lease)
	if err != nil {
		return nil, err
	}
	target, fetch := from.Target, disk.Safely(from.Fetch)
	resolving, end := step.Begin(ctx, step.Resolve)
	described, err := s.Reader.Inspect(resolving, target, p.platform, fetch)
	if end(err); err != nil {
		return nil, err
	}
	manifest := described.Manifest
	from.Expect(manifest.Layers)
	progress.From(ctx).Expect(manifest.Layers)
	fetching := progress.Step{Name: step.Fetch}
	timed := func(layer context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		if !catalog.IsDocument(desc.MediaType) {
			defer fetching.Enter(ctx)()
		}
		return fetch(layer, desc)
	}
	handler := images.Handlers(images.HandlerFunc(timed), disk.Safely(s.childrenOf(p, described)))
	limit := s.Reader.Limits.MaxImageEntries - before
	if catalog.DescribesArtifact(manifest) {
		err = images.Dispatch(ctx, handler, semaphore.NewWeighted(int64(s.unpacker.Downloads)), target)
	} else {
		err = s.unpacker.Unpack(ctx, p.Layers, described, limit, handler, target)
	}
	if err != nil {
		return nil, err
	}
	img, err := s.Reader.Load(ctx, target, p.platform)
	if err != nil {
		return nil, err
	}
	// Layers that were there before are whole too; this also finds a manifest
	// whose layers were of types that cannot be unpacked.
	k := s.views.KeyOf(p.Layers.Name, img.ChainID)
	l := s.Files.Layers[k.Snapshotter]
	return img, s.views.Mended(ctx, k, img, func() error {
		if err := s.unpacker.UnpackStored(ctx, l, img, limit); err != nil {
			return err
		}
		if !l.Kind.Layered {
			return nil
		}
		_, err := s.views.Build(ctx, l, k)
		return err
	})
}

// childrenOf has what a document of an image leads to, labelled so that the collector keeps it.
func (s *Puller) childrenOf(p Planned, d catalog.Described) images.HandlerFunc {
	labels := images.ChildGCLabels
	if s.unpacker.DiscardLayers && !catalog.DescribesArtifact(d.Manifest) && !d.Wasm {
		labels = images.ChildGCLabelsFilterLayers
	}
	children := catalog.PickOf(images.SetChildrenMappedLabels(s.Files.Content, s.Reader.Children, labels), p.platform)
	if p.Layers.Kind.Remote {
		return snapshotters.AppendInfoHandlerWrapper(p.Name.String())(children).Handle
	}
	return children
}

// PublishAs records an image that was brought in, and ends its lease.
func (s *Puller) PublishAs(ctx context.Context, p Planned, img *catalog.Image, n catalog.Naming, lease leases.Lease) (*catalog.Image, error) {
	n.Platform = p.platform.Recorded(img)
	img, err := s.Catalog.Record(ctx, img, n, lease)
	if err == nil {
		s.Interrupted.done(ctx, p.image())
		if s.unpacker.DiscardLayers {
			s.Work.Collector.Kick() // which counts, too
		} else {
			s.Work.Counter.Kick()
		}
	}
	return img, err
}

// abandon gives up what a failed pull wrote, and interrupted ones. On a full disk it
// waits until the space is free, so that the next attempt finds it; and after an
// image that was too much, so that attempts do not add up.
func (s *Puller) abandon(ctx context.Context, lease leases.Lease, cause error) {
	s.Interrupted.Drop(context.WithoutCancel(ctx))
	s.Files.EndLease(ctx, lease)
	collected := s.Work.Collector.Request()
	if disk.IsNoSpace(cause) || bounds.IsBeyond(cause) {
		<-collected
	}
}

// ContentWhole drops the damaged content of an image, and returns whether there was none.
// Layers, which need not be there, are compared by their digest if the check is thorough.
func (s *Puller) ContentWhole(ctx context.Context, img *catalog.Image, thorough bool, also ...imagespec.Descriptor) bool {
	all := true
	check := func(descs ...imagespec.Descriptor) {
		for _, desc := range descs {
			dropped, err := s.Files.DropDamaged(ctx, desc, thorough || catalog.IsDocument(desc.MediaType))
			all = all && err == nil && !dropped
		}
	}
	check(append(also, img.Manifest)...)
	manifest, err := s.Reader.ReadManifest(ctx, img.Manifest, catalog.CheckManifest)
	if err != nil {
		return false
	}
	check(append(manifest.Layers, manifest.Config)...)
	_, err = s.Files.Content.Info(ctx, manifest.Config.Digest)
	return all && err == nil
}
