package image

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Namespace is where containerd's metadata keeps what is ours.
const Namespace = "berth"

// openTimeout is how long Open waits for another process to let go of the root.
const openTimeout = 2 * time.Second

// files is what a store has on disk: content, metadata, the layers of each
// snapshotter, and the directories of containers.
type files struct {
	root string
	// writable is the directory of what containers write.
	writable string
	// snapshotter is the name that is meant where none is given.
	snapshotter string

	bolt    *bolt.DB
	db      *metadata.DB
	content content.Store
	images  images.Store
	leases  leases.Manager
	layers  map[string]*layers
	// proof is whether the kernel does what layered snapshotters need.
	proof   overlayProof
	flusher *flusher
	// changed gets something when a snapshotter of another program answers no more, or
	// again.
	changed chan struct{}
}

// diskConfig has the fields of image.Config that say where things are.
type diskConfig struct {
	Root, WritableRoot string
	// Snapshotter is where none is named, and Others are those of other programs.
	Snapshotter string
	Others      map[string]string
	Events      events.Publisher
}

// openFiles opens or makes what is at root, from the bottom up.
func openFiles(ctx context.Context, c diskConfig) (_ *files, retErr error) {
	f := &files{root: c.Root, writable: ownPart(c.WritableRoot, c.Root), snapshotter: c.Snapshotter, layers: map[string]*layers{}, changed: make(chan struct{}, 1)}
	defer func() {
		if retErr != nil {
			retErr = errors.Join(retErr, f.close())
		}
	}()
	if err := f.open(ctx, c); err != nil {
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
	// broken is why this snapshotter cannot be used here.
	broken error
	// proxied is that of another program, else nil.
	proxied *proxied
}

// excused is err, unless it is about the snapshotter of another program: what could not
// be asked of that keeps nothing else from going on.
func (l *layers) excused(ctx context.Context, err error) error {
	if err == nil || l.proxied == nil {
		return err
	}
	log.G(ctx).WithError(err).WithField("snapshotter", l.proxied.name).Warn("Failed to look at snapshots")
	return nil
}

// walkQuickly is Walk, which waits for no program for long.
func (l *layers) walkQuickly(ctx context.Context, f snapshots.WalkFunc) error {
	if l.proxied != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, proxiedStart)
		defer cancel()
	}
	return l.Walk(ctx, f)
}

// haveCollected has the next collection look at a snapshotter: metadata collects those
// only that something was removed from since the last one.
func (l *layers) haveCollected(ctx context.Context) error {
	key := "berth-collect-" + rand.Text()
	if _, err := l.Prepare(ctx, key, ""); err != nil {
		return err
	}
	if err := l.Remove(ctx, key); !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// unusable is why the snapshotter cannot be asked at this moment.
func (l *layers) unusable() error {
	if l.broken == nil && l.proxied != nil {
		return l.proxied.ready()
	}
	return l.broken
}

// inNamespace says whose things in the metadata a call is about.
func inNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, Namespace)
}

func (f *files) path(elem ...string) string {
	return filepath.Join(append([]string{f.root}, elem...)...)
}

func (f *files) writablePath(elem ...string) string {
	return filepath.Join(append([]string{f.writable}, elem...)...)
}

// ownPart is the part of a directory for writable layers that one store has: each
// removes what is there and of no container of its own.
func ownPart(writable, root string) string {
	if writable == root {
		return root
	}
	return filepath.Join(writable, "berth-"+digest.FromString(root).Encoded()[:12])
}

func (f *files) open(ctx context.Context, c diskConfig) error {
	for _, dir := range []string{f.root, f.writable, f.writablePath(rootfsDir), f.writablePath(trashDir), f.path(emptyDir), f.path(snapshotsDir), f.path(unflushedDir)} {
		// Images have setuid programs, and secrets, and only root mounts.
		if err := os.MkdirAll(dir, 0o700); err != nil {
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
	if err := f.openBolt(); err != nil {
		return err
	}
	for name, kind := range snapshotterKinds {
		f.layers[name] = f.openLayers(ctx, name, kind)
	}
	if err := f.openProxied(c.Others); err != nil {
		return err
	}
	raw := map[string]snapshots.Snapshotter{}
	for name, l := range f.layers {
		if l.broken == nil {
			raw[name] = l.raw
		}
	}
	var opts []metadata.DBOpt
	if c.Events != nil {
		opts = append(opts, metadata.WithEventsPublisher(c.Events))
	}
	f.db = metadata.NewDB(f.bolt, blobs, raw, opts...)
	if err := f.db.Init(ctx); err != nil {
		return fmt.Errorf("metadata: %w", err)
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
		if _, l.broken = f.proof.get(f.root, f.writable); l.broken != nil {
			log.G(ctx).WithError(l.broken).WithField("snapshotter", name).Warn("Snapshotter does not work on this node")
			return l
		}
	}
	if err := os.MkdirAll(f.writablePath(rootfsDir, name), 0o700); err != nil && !isNoSpace(err) {
		l.broken = err
		return l
	}
	if l.raw, l.broken = kind.open(f.path(snapshotsDir, name)); l.broken != nil {
		log.G(ctx).WithError(l.broken).WithField("snapshotter", name).Warn("Snapshotter does not work on this node")
	}
	return l
}

// openProxied opens the snapshotters of other programs, which are asked later, and what has snapshots in the
// metadata and is not configured any more: containers may have them that are to be
// removed.
func (f *files) openProxied(others map[string]string) error {
	addresses := map[string]string{}
	maps.Copy(addresses, others)
	used, err := f.namedInMetadata()
	if err != nil {
		return err
	}
	for _, name := range used {
		if _, known := addresses[name]; !known && f.layers[name] == nil {
			addresses[name] = ""
		}
	}
	for name, address := range addresses {
		p, err := newProxied(name, address, f.changed)
		if err != nil {
			return err
		}
		f.layers[name] = &layers{kind: snapshotterKind{remote: true}, rebases: newRebases(), raw: p, proxied: p}
	}
	return nil
}

// namedInMetadata are the snapshotters that the metadata has snapshots of, or the snapshots
// of one.
func (f *files) namedInMetadata(of ...string) (names []string, err error) {
	err = f.bolt.View(func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("v1"))
		for _, step := range append([]string{Namespace, "snapshots"}, of...) {
			if b == nil {
				return nil
			}
			b = b.Bucket([]byte(step))
		}
		if b == nil {
			return nil
		}
		return b.ForEachBucket(func(name []byte) error {
			names = append(names, string(name))
			return nil
		})
	})
	return names, err
}

func (f *files) openBolt() error {
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
	name = cmp.Or(name, f.snapshotter)
	l, ok := f.layers[name]
	if !ok {
		return nil, name, unknownSnapshotter(name, slices.Sorted(maps.Keys(f.layers)))
	}
	if l.proxied != nil {
		return l, name, l.proxied.ready()
	}
	broken := l.broken
	if broken == nil && l.kind.layered {
		_, broken = f.proof.get(f.root, f.writable)
	}
	if broken != nil {
		return nil, name, fmt.Errorf("snapshotter %s does not work on %s: %v: %w", name, f.root, broken, errdefs.ErrFailedPrecondition)
	}
	return l, name, nil
}
