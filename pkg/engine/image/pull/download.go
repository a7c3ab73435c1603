package pull

import (
	"cmp"
	"context"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/engine/image/registry"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
	"github.com/berth-cri/berth/pkg/step"
)

// pullOnce runs one pull, for all callers that share it.
func (s *Puller) pullOnce(ctx context.Context, p Planned) (*catalog.Image, error) {
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
	// The minimum rate also applies if stalls are not limited.
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

// attempt fetches the missing parts of an image, and records the image. After an error, again is
// true if the cause may be damaged content, or leftovers of an interrupted pull: another
// registry may have sent them.
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

// dropDamagedOf removes the damaged content of an image that could not be unpacked, and reports
// whether it found any.
func (s *Puller) dropDamagedOf(ctx context.Context, p Planned, target imagespec.Descriptor) bool {
	img, err := s.Reader.Load(ctx, target, p.platform)
	if err != nil {
		return false
	}
	whole := s.ContentWhole(ctx, img, true, target)
	return s.views.DropLost(ctx, s.views.KeyOf(p.Layers.Name, img.ChainID), img) || !whole
}

// already returns the image if target is in the store under this name, complete and unpacked: a pod
// with the pull policy Always then costs no disk write. Damaged content is removed.
func (s *Puller) already(ctx context.Context, p Planned, target imagespec.Descriptor) *catalog.Image {
	img := s.Catalog.Current(p.Name.String(), target.Digest, p.platform)
	if img == nil || img.Usable() != nil {
		return nil
	}
	if p.platform == catalog.AnyPlatform && img.Manifest.Digest != target.Digest {
		return nil // the index may have an image that is preferred
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

// ContentWhole removes the damaged content of an image, and reports whether it found none. Layers
// may be missing. Their digests are checked only if thorough is set.
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
