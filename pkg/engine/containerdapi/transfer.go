package containerdapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/transfer"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	tstreaming "github.com/containerd/containerd/v2/core/transfer/streaming"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/containerd/typeurl/v2"
	"github.com/distribution/reference"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/image/archive"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// transferService pulls, imports, exports and tags images like the CRI: with the node's registry
// configuration, limits and verifiers.
type transferService struct {
	transferapi.UnimplementedTransferServer
	images  *image.Store
	streams *streams
}

func (s *transferService) Transfer(ctx context.Context, r *transferapi.TransferRequest) (*emptypb.Empty, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	from, err := typeurl.UnmarshalAny(r.GetSource())
	if err != nil {
		return nil, fmt.Errorf("source: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	to, err := typeurl.UnmarshalAny(r.GetDestination())
	if err != nil {
		return nil, fmt.Errorf("destination: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	tell, done, err := s.progress(ctx, r.GetOptions().GetProgressStream())
	if err != nil {
		return nil, err
	}
	defer done()
	return &emptypb.Empty{}, s.transfer(ctx, from, to, tell)
}

func (s *transferService) transfer(ctx context.Context, from, to any, tell progressFunc) error {
	switch from := from.(type) {
	case *transfer.OCIRegistry:
		if to, ok := to.(*transfer.ImageStore); ok {
			return s.pull(ctx, from, to, tell)
		}
	case *transfer.ImageImportStream:
		if to, ok := to.(*transfer.ImageStore); ok {
			return s.importStream(ctx, from, to, tell)
		}
	case *transfer.ImageStore:
		switch to := to.(type) {
		case *transfer.ImageExportStream:
			return s.export(ctx, from, to, tell)
		case *transfer.ImageStore:
			return s.nameAs(ctx, from.GetName(), to)
		}
	}
	return fmt.Errorf("transfer from %T to %T is not implemented; berth pulls, imports, exports and names images: %w", from, to, errdefs.ErrNotImplemented)
}

func (s *transferService) pull(ctx context.Context, from *transfer.OCIRegistry, to *transfer.ImageStore, tell progressFunc) error {
	platform, err := platformOf(to.GetPlatforms())
	if err != nil {
		return err
	}
	named, err := reference.ParseDockerRef(from.GetReference())
	if err != nil {
		return fmt.Errorf("image name %.300q: %w: %w", from.GetReference(), err, errdefs.ErrInvalidArgument)
	}
	resolver := from.GetResolver()
	if err := checkResolver(resolver, named); err != nil {
		return err
	}
	auth, err := s.credentials(ctx, resolver.GetAuthStream(), named)
	if err != nil {
		return err
	}
	tell(&transfer.Progress{Event: "Pulling " + named.String()})
	defer s.follow(ctx, named.String(), tell)()
	img, err := s.images.Pull(ctx, pull.Request{Ref: named.String(), Auth: auth, Snapshotter: snapshotterOf(to), Platform: platform})
	if err != nil {
		return err
	}
	tell(&transfer.Progress{Event: "saved", Name: named.String()})
	tell(&transfer.Progress{Event: "Completed pull of " + img.ID})
	if wanted, err := reference.ParseDockerRef(to.GetName()); to.GetName() == "" || err == nil && wanted.String() == named.String() {
		return s.label(ctx, named.String(), to.GetLabels())
	}
	return s.nameAs(ctx, named.String(), to)
}

// checkResolver rejects options that reach a registry in another way than the node does. The node
// itself uses plain HTTP for registries on localhost.
func checkResolver(r *transfer.RegistryResolver, named reference.Named) error {
	local, err := docker.MatchLocalhost(reference.Domain(named))
	plain := r.GetDefaultScheme() == "http" && local && err == nil
	if r.GetHostDir() == "" && (r.GetDefaultScheme() == "" || plain) {
		return nil
	}
	return fmt.Errorf("registries are configured for the whole node: put hosts.toml into registry.hosts_dir instead of hosts-dir or plain-http: %w", errdefs.ErrInvalidArgument)
}

// snapshotterOf is the snapshotter that the client requests; empty is the default.
func snapshotterOf(to *transfer.ImageStore) string {
	for _, u := range to.GetUnpacks() {
		if u.GetSnapshotter() != "" {
			return u.GetSnapshotter()
		}
	}
	return ""
}

// platformOf is the platform that the client requests. It rejects all platforms except the node's
// and WebAssembly. Without a request it returns AnyPlatform.
func platformOf(asked []*types.Platform) (catalog.Platform, error) {
	if len(asked) == 0 {
		return catalog.AnyPlatform, nil
	}
	own, modules, node, wasm := platforms.Default(), catalog.WasmPlatform.Matcher(), false, false
	for _, a := range asked {
		p := platforms.Normalize(imagespec.Platform{OS: a.GetOS(), Architecture: a.GetArchitecture(), Variant: a.GetVariant()})
		switch {
		case own.Match(p):
			node = true
		case modules.Match(p):
			wasm = true
		default:
			return "", fmt.Errorf("platform %s: berth keeps images for %s and %s only: %w", platforms.Format(p), catalog.NodePlatform, catalog.WasmPlatform, errdefs.ErrInvalidArgument)
		}
	}
	switch {
	case node && wasm:
		return catalog.AnyPlatform, nil
	case node:
		return catalog.NodePlatform, nil
	}
	return catalog.WasmPlatform, nil
}

// credentials requests the credentials of the image's registry from the client, once.
func (s *transferService) credentials(ctx context.Context, id string, named reference.Named) (*runtimeapi.AuthConfig, error) {
	if id == "" {
		return nil, nil
	}
	stream, err := s.streams.Get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	defer func() { _ = stream.Close() }()
	host := reference.Domain(named)
	if host == "docker.io" {
		host = "registry-1.docker.io" // as containerd requests it
	}
	question, err := typeurl.MarshalAny(&transfer.AuthRequest{Host: host, Reference: named.String()})
	if err != nil {
		return nil, err
	}
	if err := stream.Send(question); err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	packed, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	var answer transfer.AuthResponse
	if err := typeurl.UnmarshalTo(packed, &answer); err != nil {
		return nil, fmt.Errorf("credentials: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	switch answer.GetAuthType() {
	case transfer.AuthType_CREDENTIALS:
		return &runtimeapi.AuthConfig{Username: answer.GetUsername(), Password: answer.GetSecret(), ServerAddress: host}, nil
	case transfer.AuthType_REFRESH:
		return &runtimeapi.AuthConfig{IdentityToken: answer.GetSecret(), ServerAddress: host}, nil
	case transfer.AuthType_HEADER:
		return &runtimeapi.AuthConfig{RegistryToken: answer.GetSecret()}, nil
	}
	return nil, nil
}

// importStream imports an archive. It aborts a stalled import, because other imports wait for it.
func (s *transferService) importStream(ctx context.Context, from *transfer.ImageImportStream, to *transfer.ImageStore, tell progressFunc) error {
	platform, err := platformOf(to.GetPlatforms())
	if err != nil {
		return err
	}
	stream, err := s.streams.Get(ctx, from.GetStream())
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	received := tstreaming.ReceiveStream(unlogged(ctx), stream)
	if c, ok := received.(io.Closer); ok {
		defer c.Close() // unread data would block the sender for ever
	}
	paced := &pacedReader{from: received, pace: pace{giveUp: cancel}}
	names, err := s.images.Import(ctx, paced, archive.Request{Name: to.GetName(), Snapshotter: snapshotterOf(to), Platform: platform})
	for _, name := range names {
		tell(&transfer.Progress{Event: "saved", Name: name})
		err = errors.Join(err, s.label(ctx, name, to.GetLabels()))
	}
	return err
}

func (s *transferService) export(ctx context.Context, from *transfer.ImageStore, to *transfer.ImageExportStream, tell progressFunc) error {
	if _, err := platformOf(to.GetPlatforms()); err != nil {
		return err
	}
	var names []string
	if from.GetName() != "" {
		names = append(names, from.GetName())
	}
	for _, r := range from.GetExtraReferences() {
		names = append(names, r.GetName())
	}
	if len(names) == 0 {
		return fmt.Errorf("no image is named; name the images to export: %w", errdefs.ErrInvalidArgument)
	}
	stream, err := s.streams.Get(ctx, to.GetStream())
	if err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	archive := tstreaming.WriteByteStream(unlogged(ctx), stream)
	err = s.images.Export(ctx, &pacedWriter{to: archive, pace: pace{giveUp: cancel}}, names)
	if err == nil {
		tell(&transfer.Progress{Event: "Completed export"})
	}
	return errors.Join(err, archive.Close())
}

func (s *transferService) nameAs(ctx context.Context, from string, to *transfer.ImageStore) error {
	store := s.images.Clients().Images()
	known, err := store.Get(ctx, from)
	if err != nil {
		return err
	}
	made := images.Image{Name: to.GetName(), Target: known.Target, Labels: to.GetLabels()}
	_, err = store.Create(ctx, made)
	if errdefs.IsAlreadyExists(err) {
		_, err = store.Update(ctx, made, "target", "labels")
	}
	return err
}

func (s *transferService) label(ctx context.Context, name string, labels map[string]string) error {
	if len(labels) == 0 {
		return nil
	}
	var fields []string
	for label := range labels {
		fields = append(fields, "labels."+label)
	}
	_, err := s.images.Clients().Images().Update(ctx, images.Image{Name: name, Labels: labels}, fields...)
	return err
}

// progressFunc reports the progress of a transfer to its client.
type progressFunc func(*transfer.Progress)

// progress reports through a stream of the client, if there is one.
func (s *transferService) progress(ctx context.Context, id string) (progressFunc, func(), error) {
	if id == "" {
		return func(*transfer.Progress) {}, func() {}, nil
	}
	stream, err := s.streams.Get(ctx, id)
	if err != nil {
		return nil, nil, fmt.Errorf("progress: %w", err)
	}
	var mu sync.Mutex
	tell := func(p *transfer.Progress) {
		mu.Lock()
		defer mu.Unlock()
		packed, err := typeurl.MarshalAny(p)
		if err == nil {
			err = stream.Send(packed)
		}
		if err != nil {
			log.G(ctx).WithError(err).Debug("Failed to report progress to a client")
		}
	}
	return tell, func() { _ = stream.Close() }, nil
}

const progressInterval = 200 * time.Millisecond

// follow reports the layers of a pull until end is called.
func (s *transferService) follow(ctx context.Context, name string, tell progressFunc) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	following.Go(func() {
		_ = wait.PollUntilContextCancel(ctx, progressInterval, false, func(ctx context.Context) (bool, error) {
			for _, u := range s.images.Underway(ctx) {
				if u.Name != name {
					continue
				}
				for _, l := range u.Layers {
					tell(&transfer.Progress{Event: progressEvents[l.Stage], Name: l.Digest.String(), Progress: l.Fetched, Total: l.Size})
				}
			}
			return false, nil
		})
	})
	return func() {
		cancel()
		following.Wait()
	}
}

// progressEvents are containerd's names of the stages.
var progressEvents = map[progress.LayerStage]string{
	progress.LayerWaiting: "waiting", progress.LayerFetching: "downloading", progress.LayerFetched: "complete",
	progress.LayerUnpacking: "extracting", progress.LayerUnpacked: "extracted",
}

// pace aborts the transfer of a client that moves less than paceBytes within paceTimeout. Only the
// time in which berth waits for the client counts.
type pace struct {
	giveUp func()
	waited time.Duration
	moved  int
}

const (
	paceTimeout = time.Minute
	paceBytes   = 256 << 10
)

var errTooSlow = fmt.Errorf("the client moves less than %d KiB of the archive in %s: %w", paceBytes>>10, paceTimeout, errdefs.ErrUnavailable)

// wait measures f, which waits for the client and transfers bytes.
func (p *pace) wait(f func() (int, error)) (int, error) {
	if p.waited >= paceTimeout {
		if p.moved < paceBytes {
			return 0, errTooSlow
		}
		p.waited, p.moved = 0, 0
	}
	var late atomic.Bool
	timer := time.AfterFunc(paceTimeout, func() {
		late.Store(true)
		p.giveUp()
	})
	defer timer.Stop()
	begin := time.Now()
	n, err := f()
	p.waited, p.moved = p.waited+time.Since(begin), p.moved+n
	if err != nil && late.Load() {
		err = errTooSlow
	}
	return n, err
}

// pacedReader reads a client's archive.
type pacedReader struct {
	from io.Reader
	pace pace
}

func (r *pacedReader) Read(b []byte) (int, error) {
	return r.pace.wait(func() (int, error) { return r.from.Read(b) })
}

// pacedWriter writes an archive to a client.
type pacedWriter struct {
	to   io.Writer
	pace pace
}

func (w *pacedWriter) Write(b []byte) (int, error) {
	return w.pace.wait(func() (int, error) { return w.to.Write(b) })
}
