package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// namespace is where containerd's metadata keeps what is ours.
const namespace = "berth"

// openTimeout is how long Open waits for another process to let go of the root.
const openTimeout = 2 * time.Second

// Store keeps the images of one node.
type Store struct {
	cfg      Config
	platform platforms.MatchComparer

	bolt    *bolt.DB
	db      *metadata.DB
	content content.Store
	images  images.Store
	leases  leases.Manager
	applier diff.Applier
	// verifier is nil if any image may be pulled.
	verifier *bindir.ImageVerifier
	layers   map[string]*layers
	windows  *windows
	budget   *budget

	index   *index
	flights *flights
	// unpacking is held for a blob or a layer while it is fetched or unpacked,
	// and for a view while it is made or removed.
	unpacking keyedLock
	views     *views
	collector *worker
	sweeper   *worker
	counter   *worker
	measurer  *measurer
	stored    storedUsage

	// records is held while image records and then the index change, so that
	// both change in the same order. Never during a download.
	records sync.Mutex

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// layers is one snapshotter as the Store uses it.
type layers struct {
	snapshots.Snapshotter
	kind snapshotterKind
	// raw is the snapshotter without the metadata around it.
	raw snapshots.Snapshotter
	// proof is whether the kernel does what a layered snapshotter needs.
	proof overlayProof
	// broken is why this snapshotter cannot be used here.
	broken error
}

// Open opens or makes the store at c.Root. It is one process's: a second Open
// of the same root fails after a few seconds.
func Open(ctx context.Context, c Config) (_ *Store, retErr error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	verifier, err := c.Verifiers.verifier()
	if err != nil {
		return nil, err
	}
	s := &Store{
		cfg:      c,
		verifier: verifier,
		platform: platforms.Default(),
		index:    newIndex(newPinPatterns(c.PinnedImages)),
		flights:  newFlights(),
		views:    newViews(),
		layers:   map[string]*layers{},
		windows:  newWindows(c.Limits.MaxZstdWindow),
		budget:   newBudget(),
	}
	defer func() {
		if retErr != nil {
			retErr = errors.Join(retErr, s.closeFiles())
		}
	}()
	if err := s.openFiles(ctx); err != nil {
		return nil, fmt.Errorf("open image store %s: %w", c.Root, err)
	}
	if err := s.recover(s.context(ctx)); err != nil {
		return nil, fmt.Errorf("read image store %s: %w", c.Root, err)
	}
	s.startWorkers(context.WithoutCancel(ctx))
	return s, nil
}

// Close ends the pulls and the background work, and closes the store.
func (s *Store) Close() error {
	s.flights.close()
	s.stop()
	s.wg.Wait()
	return s.closeFiles()
}

// context says whose things in the metadata a call is about.
func (s *Store) context(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, namespace)
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.cfg.Root}, elem...)...)
}

// openFiles opens what is on disk, from the bottom up.
func (s *Store) openFiles(ctx context.Context) error {
	for _, dir := range []string{s.cfg.Root, s.path(rootfsDir), s.path(trashDir), s.path(emptyDir), s.path(snapshotsDir)} {
		// Images have setuid programs, and secrets. Whoever mounts is root, so that
		// nobody else has to get here; earlier versions let everybody pass.
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
			return err
		}
	}
	blobs, err := local.NewStore(s.path("content"))
	if err != nil {
		return fmt.Errorf("content: %w", err)
	}
	raw := map[string]snapshots.Snapshotter{}
	for name, kind := range snapshotterKinds {
		l := s.openLayers(ctx, name, kind)
		s.layers[name] = l
		if l.broken == nil {
			raw[name] = l.raw
		}
	}
	if err := s.openMetadata(ctx, blobs, raw); err != nil {
		return err
	}
	for name, l := range s.layers {
		l.Snapshotter = s.db.Snapshotter(name)
	}
	s.content = s.db.ContentStore()
	s.images = metadata.NewImageStore(s.db)
	s.leases = metadata.NewLeaseManager(s.db)
	s.applier = safeApplier{&applier{content: s.content, scratch: s.cfg.Root, portion: defaultPortion, budget: s.budget}}
	return nil
}

// openLayers opens a snapshotter. One that does not work here matters only to
// whoever asks for it.
func (s *Store) openLayers(ctx context.Context, name string, kind snapshotterKind) *layers {
	l := &layers{kind: kind}
	if kind.layered {
		if _, l.broken = l.proof.get(s.cfg.Root); l.broken != nil {
			log.G(ctx).WithError(l.broken).WithField("snapshotter", name).Warn("Snapshotter does not work on this node")
			return l
		}
	}
	if err := os.MkdirAll(s.path(rootfsDir, name), 0o700); err != nil && !isNoSpace(err) {
		l.broken = err
		return l
	}
	if l.raw, l.broken = kind.open(s.path(snapshotsDir, name)); l.broken != nil {
		log.G(ctx).WithError(l.broken).WithField("snapshotter", name).Warn("Snapshotter does not work on this node")
	}
	return l
}

func (s *Store) openMetadata(ctx context.Context, blobs content.Store, raw map[string]snapshots.Snapshotter) error {
	options := *bolt.DefaultOptions
	options.NoFreelistSync = true
	options.NoStatistics = true
	options.Timeout = openTimeout
	var err error
	if s.bolt, err = bolt.Open(s.path("meta.db"), 0o600, &options); err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			return fmt.Errorf("another process has the image store open; stop it first: %w", errdefs.ErrFailedPrecondition)
		}
		return fmt.Errorf("metadata: %w", err)
	}
	s.db = metadata.NewDB(s.bolt, blobs, raw)
	if err := s.db.Init(ctx); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	return nil
}

func (s *Store) closeFiles() error {
	var errs []error
	for _, l := range s.layers {
		if l.raw != nil {
			errs = append(errs, l.raw.Close())
		}
	}
	if s.db != nil {
		errs = append(errs, s.db.Close())
	} else if s.bolt != nil {
		errs = append(errs, s.bolt.Close())
	}
	return errors.Join(errs...)
}

// layersOf returns the snapshotter of a name (empty: the default) and the name.
func (s *Store) layersOf(name string) (*layers, string, error) {
	if name == "" {
		name = s.cfg.DefaultSnapshotter
	}
	l, ok := s.layers[name]
	if !ok {
		return nil, name, unknownSnapshotter(name)
	}
	broken := l.broken
	if broken == nil && l.kind.layered {
		_, broken = l.proof.get(s.cfg.Root)
	}
	if broken != nil {
		return nil, name, fmt.Errorf("snapshotter %s does not work on %s: %v: %w", name, s.cfg.Root, broken, errdefs.ErrFailedPrecondition)
	}
	return l, name, nil
}

// Get finds an image by tag, short name, digest, tag and digest, id with or
// without "sha256:", or a unique prefix (six digits or more) of an id.
// errdefs.ErrNotFound when there is none, ErrInvalidArgument when a prefix fits
// several. It reads memory only.
func (s *Store) Get(ref string) (*Image, error) { return s.index.get(ref) }

// List returns all images, sorted by ID. It reads memory only.
func (s *Store) List() []*Image { return s.index.list() }
