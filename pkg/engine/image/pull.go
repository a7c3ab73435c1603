package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"github.com/berth-cri/berth/pkg/engine/image/registry"
	"github.com/berth-cri/berth/pkg/step"
)

// PullRequest says what to pull and how.
type PullRequest struct {
	// Ref is an image name as a pod spec has it.
	Ref string
	// Auth are the credentials; nil is anonymous.
	Auth *runtimeapi.AuthConfig
	// Snapshotter is where to unpack; empty is the default.
	Snapshotter string
	// Platform says which image is wanted of those that the name may stand for.
	Platform Platform
	// PlainHTTP asks the registry without TLS, unless its hosts.toml has another way.
	PlainHTTP bool
}

// pullConfig has fields of image.Config.
type pullConfig struct {
	HostsDir  string
	Verifiers Verifiers
	// ProgressTimeout is PullProgressTimeout.
	ProgressTimeout time.Duration
}

// defaultProgressTimeout is that of a store whose configuration has none.
const defaultProgressTimeout = 5 * time.Minute

// puller brings images into a store.
type puller struct {
	cfg      pullConfig
	verifier *bindir.ImageVerifier // nil if any image may be pulled
	flights  *flights
	files    *files
	reader   *reader
	catalog  *catalog
	unpacker *unpacker
	views    *views
	work     work

	interrupted *interrupted
	underway    underway
	// incomplete has the IDs of images of which a container lacked something that could
	// not be fetched: a pull is asked for until it succeeds.
	incomplete sync.Map
	// ahead bounds the parts of layers that are in memory before they are needed.
	ahead *semaphore.Weighted
}

// maxAhead is how many those may be: 16 MiB.
const maxAhead = (16 << 20) / registry.PartSize

func newPuller(c pullConfig, k *catalog, v *views) (*puller, error) {
	verifier, err := c.Verifiers.verifier()
	if err != nil {
		return nil, err
	}
	return &puller{
		cfg: c, verifier: verifier, flights: &flights{running: map[string]*flight{}, cancels: map[*flight]context.CancelCauseFunc{}}, files: v.files, reader: k.reader, catalog: k, unpacker: v.unpacker, views: v, work: v.work,
		interrupted: &interrupted{files: v.files, collector: v.work.collector}, ahead: semaphore.NewWeighted(maxAhead),
	}, nil
}

// close ends the pulls, and waits for them.
func (s *puller) close() { s.flights.close() }

// Pull brings an image into the store, unpacks it, and returns it. The registry
// is asked every time, with the given credentials, even if everything is there
// already; what is there is not downloaded again.
//
// Callers with the same name, credentials, snapshotter and platform share one download. A
// caller whose ctx ends gets ctx's error at once; the download ends with its
// last caller. Errors carry an errdefs class, no secret, and what to do. Those
// of class ErrUnknown begin with "RegistryUnavailable" or, if a verifier did not
// let the image pass, with "SignatureValidationFailed", for the kubelet.
func (s *puller) Pull(ctx context.Context, r PullRequest) (*Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("pull %s: %w", r.Ref, err)
	}
	p, err := s.plan(r)
	if err != nil {
		return nil, err
	}
	img, err := s.flights.do(ctx, p.key(), func(ctx context.Context, cancel context.CancelCauseFunc) (*Image, error) {
		return s.fly(inNamespace(ctx), p, cancel)
	})
	if errors.Is(err, errClosing) {
		return nil, fmt.Errorf("pull %s: %v: %w", p.name, err, errdefs.ErrUnavailable)
	}
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("pull %s: %w", p.name, ctx.Err())
	}
	return img, err
}

// pull is a checked PullRequest.
type pull struct {
	name        reference.Named
	creds       *registry.Credentials
	layers      *layers
	snapshotter string
	platform    Platform
	plainHTTP   bool
}

func (s *puller) plan(r PullRequest) (pull, error) {
	name, err := parseName(r.Ref)
	if err != nil {
		return pull{}, err
	}
	creds, err := registry.ParseAuth(r.Auth)
	if err != nil {
		return pull{}, fmt.Errorf("pull %s: %w", name, err)
	}
	l, snapshotter, err := s.files.layersOf(r.Snapshotter)
	if err != nil {
		return pull{}, fmt.Errorf("pull %s: %w", name, err)
	}
	return pull{name: name, creds: creds, layers: l, snapshotter: snapshotter, platform: r.Platform, plainHTTP: r.PlainHTTP}, nil
}

// key is equal for pulls that may share a download. It holds no secret.
func (p pull) key() string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %t", p.name, p.snapshotter, p.platform, p.plainHTTP)
	fmt.Fprintf(h, " %q", p.creds.Key())
	return hex.EncodeToString(h.Sum(nil))
}

func (p pull) image() string {
	text := fmt.Sprintf("%q %q", p.name, p.snapshotter)
	if p.platform != NodePlatform {
		text += fmt.Sprintf(" %q", p.platform)
	}
	return digest.FromString(text).Encoded()
}

// fly is one download, for all who share it.
func (s *puller) fly(ctx context.Context, p pull, cancel context.CancelCauseFunc) (*Image, error) {
	start := time.Now()
	known, end := s.underway.begin(p.name.String(), p.snapshotter)
	defer end()
	ctx = underwayBy(ctx, known)
	clean := registry.NewRedactor(p.creds)
	ctx = clean.Logger(ctx)
	watched := &registry.Progress{Total: &s.underway.fetched}
	go watched.Watch(ctx, s.cfg.ProgressTimeout, cancel)
	img, err := s.download(ctx, p, watched)
	if err != nil {
		host := reference.Domain(p.name)
		return nil, explainPull(pullFailure{
			ref: p.name.String(), host: host, hostsDir: s.cfg.HostsDir, root: s.files.root,
			verifiers: s.cfg.Verifiers.BinDir, clean: clean, cause: context.Cause(ctx), err: err,
		})
	}
	s.incomplete.Delete(img.ID)
	log.G(ctx).WithFields(log.Fields{
		"image": img.ID, "name": p.name.String(), "snapshotter": p.snapshotter,
		"bytes": watched.Bytes(), "duration": time.Since(start),
	}).WithFields(stepFields(ctx)).Info("Image pulled")
	return img, nil
}

// stepFields are what the parts of a pull took, for the log.
func stepFields(ctx context.Context) log.Fields {
	fields := log.Fields{}
	for _, s := range step.Of(ctx) {
		fields[s.Name] = s.Took
	}
	return fields
}

func (s *puller) download(ctx context.Context, p pull, watched *registry.Progress) (*Image, error) {
	from := registry.New(ctx, registry.Options{
		HostsDir: s.cfg.HostsDir, Credentials: p.creds, Limits: s.reader.limits, Window: s.window(), Progress: watched,
		Connections: s.unpacker.Downloads, Ahead: s.ahead, PlainHTTP: p.plainHTTP,
	})
	defer from.Close()
	resolving, end := step.Begin(ctx, step.Resolve)
	target, err := from.Resolve(resolving, p.name.String())
	if end(err); err != nil {
		return nil, &resolveError{err}
	}
	if err := checkDocument(s.reader.limits, "manifest", target); err != nil {
		return nil, err
	}
	if err := s.verify(ctx, p.name.String(), target); err != nil {
		return nil, err
	}
	if img := s.already(ctx, p, target); img != nil {
		return img, nil
	}
	fetcher, err := from.Fetcher(ctx, p.name.String())
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
func (s *puller) attempt(ctx context.Context, p pull, target imagespec.Descriptor, f *registry.Fetcher) (_ *Image, again bool, err error) {
	leased, lease, resumed, err := s.interrupted.lease(ctx, p.image())
	if err != nil {
		return nil, false, err
	}
	img, err := s.bringIn(leased, p, source{target: target, fetch: images.Handlers(images.HandlerFunc(s.dropDamaged), remotes.FetchHandler(newSourced(s.files.content, p.name), f)), expect: f.Expect}, lease)
	if err == nil {
		failpoint.Hit(failpoint.ImageUnpacked)
		img, err = s.publish(ctx, p, img, target, lease)
	}
	if err == nil {
		return img, false, nil
	}
	if wasInterrupted(context.Cause(ctx), err) {
		s.interrupted.keep(context.WithoutCancel(ctx), p.image(), lease)
		return nil, false, err
	}
	again = !isNoSpace(err) && !bounds.IsBeyond(err) && (resumed || s.dropDamagedOf(leased, p, target))
	s.abandon(ctx, lease, err)
	return nil, again, err
}

// dropDamagedOf drops what is damaged of an image that could not be unpacked, and says
// whether there was any.
func (s *puller) dropDamagedOf(ctx context.Context, p pull, target imagespec.Descriptor) bool {
	img, err := s.reader.load(ctx, target, p.platform)
	if err != nil {
		return false
	}
	whole := s.contentWhole(ctx, img, true, target)
	return s.views.dropLost(ctx, s.views.keyOf(p.snapshotter, img.ChainID), img) || !whole
}

// dropDamaged has what is damaged fetched, too.
func (s *puller) dropDamaged(ctx context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
	_, err := s.files.dropDamaged(ctx, desc, isDocument(desc.MediaType))
	return nil, err
}

// window is over how long the rate of a download is measured.
func (s *puller) window() time.Duration {
	if s.cfg.ProgressTimeout < 0 { // never a stall, but there is a rate all the same
		return defaultProgressTimeout
	}
	return s.cfg.ProgressTimeout
}

// already returns the image if target is in the store, under this name, whole and
// unpacked: a pod whose pull policy is Always then costs no disk write. What is damaged
// is dropped.
func (s *puller) already(ctx context.Context, p pull, target imagespec.Descriptor) *Image {
	img := s.catalog.current(p.name.String(), target.Digest, p.platform)
	if img == nil || img.usable() != nil {
		return nil
	}
	if p.platform == AnyPlatform && img.manifest.Digest != target.Digest {
		return nil // an index may have one that is preferred
	}
	if !s.contentWhole(ctx, img, false, target) {
		return nil
	}
	k := s.views.keyOf(p.snapshotter, img.ChainID)
	l := s.files.layers[k.snapshotter]
	if l.kind.layered {
		if s.views.table.get(k) == nil {
			return nil
		}
		if !s.views.whole(k) {
			s.views.dropLost(ctx, k, img)
			return nil
		}
		return img
	}
	if done, err := isUnpacked(ctx, l, k.chain); err != nil || !done {
		return nil
	}
	return img
}

// source is where an image comes from.
type source struct {
	target imagespec.Descriptor
	// fetch brings what a descriptor stands for into the content store.
	fetch images.HandlerFunc
	// expect is told which layers will be fetched.
	expect func(layers []imagespec.Descriptor)
}

// bringIn fetches and unpacks under a lease, and reads what came.
func (s *puller) bringIn(ctx context.Context, p pull, from source, lease leases.Lease) (*Image, error) {
	before, err := s.files.entriesOf(ctx, lease)
	if err != nil {
		return nil, err
	}
	target, fetch := from.target, safely(from.fetch)
	resolving, end := step.Begin(ctx, step.Resolve)
	described, err := s.reader.inspect(resolving, target, p.platform, fetch)
	if end(err); err != nil {
		return nil, err
	}
	manifest := described.manifest
	from.expect(manifest.Layers)
	underwayOf(ctx).expect(manifest.Layers)
	labels := images.ChildGCLabels
	if s.unpacker.DiscardLayers && !isArtifact(manifest) && !described.wasm {
		labels = images.ChildGCLabelsFilterLayers
	}
	children := images.SetChildrenMappedLabels(s.files.content, s.reader.children, labels)
	children = pickOf(children, p.platform)
	if p.layers.kind.remote {
		children = snapshotters.AppendInfoHandlerWrapper(p.name.String())(children).Handle
	}
	fetching := part{name: step.Fetch}
	timed := func(layer context.Context, desc imagespec.Descriptor) ([]imagespec.Descriptor, error) {
		if !isDocument(desc.MediaType) {
			defer fetching.enter(ctx)()
		}
		return fetch(layer, desc)
	}
	handler := images.Handlers(images.HandlerFunc(timed), safely(children))
	limit := s.reader.limits.MaxImageEntries - before
	if isArtifact(manifest) {
		return s.bringInArtifact(ctx, p, target, handler, limit)
	}
	u, err := s.unpacker.begin(ctx, p.layers, p.snapshotter, described, limit)
	if err != nil {
		return nil, err
	}
	defer u.end()
	dispatchErr := images.Dispatch(ctx, u.Unpack(handler), s.unpacker.others(described), target)
	if _, err := u.Wait(); err != nil {
		return nil, err
	}
	if dispatchErr != nil {
		return nil, dispatchErr
	}
	img, err := s.reader.load(ctx, target, p.platform)
	if err != nil {
		return nil, err
	}
	// Layers that were there before are whole too; this also finds a manifest
	// whose layers were of types that nobody unpacks.
	k := s.views.keyOf(p.snapshotter, img.ChainID)
	return img, s.views.mended(ctx, k, img, func() error {
		if err := s.unpacker.unpackStored(ctx, p.layers, p.snapshotter, img); err != nil {
			return err
		}
		return s.see(ctx, k)
	})
}

func (s *puller) bringInArtifact(ctx context.Context, p pull, target imagespec.Descriptor, handler images.Handler, limit int64) (*Image, error) {
	if err := images.Dispatch(ctx, handler, semaphore.NewWeighted(int64(s.unpacker.Downloads)), target); err != nil {
		return nil, err
	}
	img, err := s.reader.load(ctx, target, p.platform)
	if err != nil {
		return nil, err
	}
	k := s.views.keyOf(p.snapshotter, img.ChainID)
	if err := s.unpacker.unpackArtifact(ctx, s.files.layers[k.snapshotter], k.snapshotter, img, limit); err != nil {
		return nil, err
	}
	return img, s.see(ctx, k)
}

// see makes the view of what was unpacked.
func (s *puller) see(ctx context.Context, k viewKey) error {
	l := s.files.layers[k.snapshotter]
	if !l.kind.layered {
		return nil
	}
	_, err := s.views.build(ctx, l, k)
	return err
}

// publish makes a pulled image known by its tag, if it has one, and its digest.
func (s *puller) publish(ctx context.Context, p pull, img *Image, target imagespec.Descriptor, lease leases.Lease) (*Image, error) {
	names, err := recordNames(p.name, target.Digest)
	if err != nil {
		return nil, err
	}
	return s.publishAs(ctx, p, img, naming{names: names, target: target, labels: kubeletLabels}, lease)
}

func (s *puller) publishAs(ctx context.Context, p pull, img *Image, n naming, lease leases.Lease) (*Image, error) {
	n.platform = p.platform.recorded(img)
	img, err := s.catalog.record(ctx, img, n, lease)
	if err == nil {
		s.interrupted.done(ctx, p.image())
		if s.unpacker.DiscardLayers {
			s.work.collector.kick() // which counts, too
		} else {
			s.work.counter.kick()
		}
	}
	return img, err
}

// abandon gives up what a failed pull wrote, and interrupted ones. On a full disk it
// waits until the space is free, so that the next attempt finds it; and after an
// image that was too much, so that attempts do not add up.
func (s *puller) abandon(ctx context.Context, lease leases.Lease, cause error) {
	s.interrupted.drop(context.WithoutCancel(ctx))
	s.files.endLease(ctx, lease)
	collected := s.work.collector.request()
	if isNoSpace(cause) || bounds.IsBeyond(cause) {
		<-collected
	}
}

// contentWhole drops the damaged content of an image, and returns whether there was none.
// Layers, which need not be there, are compared by their digest if the check is thorough.
func (s *puller) contentWhole(ctx context.Context, img *Image, thorough bool, also ...imagespec.Descriptor) bool {
	all := true
	check := func(descs ...imagespec.Descriptor) {
		for _, desc := range descs {
			dropped, err := s.files.dropDamaged(ctx, desc, thorough || isDocument(desc.MediaType))
			all = all && err == nil && !dropped
		}
	}
	check(append(also, img.manifest)...)
	manifest, err := s.reader.readManifest(ctx, img.manifest, checkManifest)
	if err != nil {
		return false
	}
	check(append(manifest.Layers, manifest.Config)...)
	_, err = s.files.content.Info(ctx, manifest.Config.Digest)
	return all && err == nil
}
