package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// namespace is where containerd's metadata keeps what is ours.
const namespace = "berth"

// openTimeout is how long Open waits for another process to let go of the root.
const openTimeout = 2 * time.Second

// files is what a store has on disk: content, metadata, the layers of each
// snapshotter, and the directories of containers.
type files struct {
	root string
	// snapshotter is the name that is meant where none is given.
	snapshotter string

	bolt    *bolt.DB
	db      *metadata.DB
	content content.Store
	images  images.Store
	leases  leases.Manager
	layers  map[string]*layers
	flusher *flusher
}

// openFiles opens or makes what is at root, from the bottom up.
func openFiles(ctx context.Context, root, snapshotter string) (_ *files, retErr error) {
	f := &files{root: root, snapshotter: snapshotter, layers: map[string]*layers{}}
	defer func() {
		if retErr != nil {
			retErr = errors.Join(retErr, f.close())
		}
	}()
	if err := f.open(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

// layers is one snapshotter as the Store uses it.
type layers struct {
	snapshots.Snapshotter
	kind snapshotterKind
	// raw is the snapshotter without the metadata around it.
	raw     snapshots.Snapshotter
	rebases *rebases
	// proof is whether the kernel does what a layered snapshotter needs.
	proof overlayProof
	// broken is why this snapshotter cannot be used here.
	broken error
}

// inNamespace says whose things in the metadata a call is about.
func inNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, namespace)
}

// path is below the root.
func (f *files) path(elem ...string) string {
	return filepath.Join(append([]string{f.root}, elem...)...)
}

func (f *files) open(ctx context.Context) error {
	for _, dir := range []string{f.root, f.path(rootfsDir), f.path(trashDir), f.path(emptyDir), f.path(snapshotsDir), f.path(unflushedDir)} {
		// Images have setuid programs, and secrets. Whoever mounts is root, so that
		// nobody else has to get here; earlier versions let everybody pass.
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
			return err
		}
	}
	var err error
	if f.flusher, err = newFlusher(f.root, f.path(unflushedDir)); err != nil {
		return err
	}
	blobs, err := local.NewStore(f.path("content"))
	if err != nil {
		return fmt.Errorf("content: %w", err)
	}
	raw := map[string]snapshots.Snapshotter{}
	for name, kind := range snapshotterKinds {
		l := f.openLayers(ctx, name, kind)
		f.layers[name] = l
		if l.broken == nil {
			raw[name] = l.raw
		}
	}
	if err := f.openMetadata(ctx, blobs, raw); err != nil {
		return err
	}
	for name, l := range f.layers {
		l.Snapshotter = f.db.Snapshotter(name)
	}
	f.content = f.db.ContentStore()
	f.images = metadata.NewImageStore(f.db)
	f.leases = metadata.NewLeaseManager(f.db)
	return nil
}

// openLayers opens a snapshotter. One that does not work here matters only to
// whoever asks for it.
func (f *files) openLayers(ctx context.Context, name string, kind snapshotterKind) *layers {
	l := &layers{kind: kind, rebases: newRebases()}
	if kind.layered {
		if _, l.broken = l.proof.get(f.root); l.broken != nil {
			log.G(ctx).WithError(l.broken).WithField("snapshotter", name).Warn("Snapshotter does not work on this node")
			return l
		}
	}
	if err := os.MkdirAll(f.path(rootfsDir, name), 0o700); err != nil && !isNoSpace(err) {
		l.broken = err
		return l
	}
	if l.raw, l.broken = kind.open(f.path(snapshotsDir, name)); l.broken != nil {
		log.G(ctx).WithError(l.broken).WithField("snapshotter", name).Warn("Snapshotter does not work on this node")
	}
	return l
}

func (f *files) openMetadata(ctx context.Context, blobs content.Store, raw map[string]snapshots.Snapshotter) error {
	options := *bolt.DefaultOptions
	options.NoFreelistSync = true
	options.NoStatistics = true
	options.Timeout = openTimeout
	var err error
	if f.bolt, err = bolt.Open(f.path("meta.db"), 0o600, &options); err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			return fmt.Errorf("another process has the image store open; stop it first: %w", errdefs.ErrFailedPrecondition)
		}
		return fmt.Errorf("metadata: %w", err)
	}
	f.db = metadata.NewDB(f.bolt, blobs, raw)
	if err := f.db.Init(ctx); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	return nil
}

func (f *files) close() error {
	var errs []error
	for _, l := range f.layers {
		if l.raw != nil {
			errs = append(errs, l.raw.Close())
		}
	}
	if f.db != nil {
		errs = append(errs, f.db.Close())
	} else if f.bolt != nil {
		errs = append(errs, f.bolt.Close())
	}
	return errors.Join(errs...)
}

// layersOf returns the snapshotter of a name (empty: the default) and the name.
func (f *files) layersOf(name string) (*layers, string, error) {
	if name == "" {
		name = f.snapshotter
	}
	l, ok := f.layers[name]
	if !ok {
		return nil, name, unknownSnapshotter(name)
	}
	broken := l.broken
	if broken == nil && l.kind.layered {
		_, broken = l.proof.get(f.root)
	}
	if broken != nil {
		return nil, name, fmt.Errorf("snapshotter %s does not work on %s: %v: %w", name, f.root, broken, errdefs.ErrFailedPrecondition)
	}
	return l, name, nil
}
