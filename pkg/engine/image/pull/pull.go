// Package pull brings images from registries into a store.
package pull

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/semaphore"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/engine/image/registry"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
)

// Request describes a pull.
type Request struct {
	// Ref is an image name as in a pod spec.
	Ref string
	// Auth are the credentials; nil is anonymous.
	Auth *runtimeapi.AuthConfig
	// Snapshotter is the snapshotter to unpack into; empty is the default.
	Snapshotter string
	// Platform selects one of the images that the name may stand for.
	Platform catalog.Platform
	// PlainHTTP contacts the registry without TLS, unless a hosts.toml configures the registry.
	PlainHTTP bool
}

// Config has the fields of image.Config that a Puller needs.
type Config struct {
	HostsDir  string
	Verifiers Verifiers
	// ProgressTimeout is PullProgressTimeout of image.Config.
	ProgressTimeout time.Duration
}

// DefaultProgressTimeout is the value for a store that configures none.
const DefaultProgressTimeout = 5 * time.Minute

// Puller brings images into a store.
type Puller struct {
	cfg      Config
	verifier *bindir.ImageVerifier // nil if any image may be pulled
	shared   coalescer
	Files    *disk.Files
	Reader   *catalog.Reader
	Catalog  *catalog.Catalog
	unpacker *unpack.Unpacker
	views    *containerfs.Views
	Work     containerfs.Work

	Interrupted *interrupted
	Underway    progress.Pulls
	// Incomplete has the IDs of images with missing content that could not be fetched for a
	// container: ImageStatus hides these images until a pull succeeds.
	Incomplete sync.Map
	// Ahead bounds the parts of layers that are fetched into memory before they are needed.
	Ahead *semaphore.Weighted

	// open is the context that Close ends. closing serialises Close with additions to running.
	open    context.Context
	end     context.CancelFunc
	closing sync.Mutex
	running sync.WaitGroup
}

// maxAhead is the number of parts that Ahead admits: 16 MiB in total.
const maxAhead = (16 << 20) / registry.PartSize

// New returns a puller. It returns errdefs.ErrInvalidArgument for verifiers without a timeout.
func New(c Config, k *catalog.Catalog, v *containerfs.Views) (*Puller, error) {
	verifier, err := c.Verifiers.verifier()
	if err != nil {
		return nil, err
	}
	s := &Puller{
		cfg: c, verifier: verifier, shared: coalescer{running: map[string]*sharedPull{}}, Files: v.Files, Reader: k.Reader, Catalog: k, unpacker: v.Unpacker, views: v, Work: v.Work,
		Interrupted: &interrupted{files: v.Files, collector: v.Work.Collector}, Ahead: semaphore.NewWeighted(maxAhead),
	}
	s.open, s.end = context.WithCancel(context.Background())
	return s, nil
}

// ErrClosing is the error of calls, and the cause of their contexts' end, when the store closes.
var ErrClosing = fmt.Errorf("the image store is closing: %w", errdefs.ErrUnavailable)

// During calls f with a context that ends with the store. A panic of f is returned as an error.
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

// Pull pulls an image into the store, unpacks it, and returns it. The registry is contacted every
// time, with the given credentials; content in the store is not downloaded again.
//
// Callers with equal requests share one download. A caller gets ctx's error as soon as its ctx
// ends; the download ends with its last caller. Errors carry an errdefs class and no secret. For
// the kubelet, the error begins with "RegistryUnavailable" if the registry cannot be reached or
// fails, and with "SignatureValidationFailed" if a verifier rejected the image.
func (s *Puller) Pull(ctx context.Context, r Request) (*catalog.Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("pull %s: %w", r.Ref, err)
	}
	p, err := s.Plan(r)
	if err != nil {
		return nil, err
	}
	img, err := s.shared.do(ctx, p.key(), func(ctx context.Context) (img *catalog.Image, err error) {
		err = s.During(ctx, func(ctx context.Context) error {
			img, err = s.pullOnce(ctx, p)
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

// key is the same for pulls that may share a download. It holds no secret.
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
