// Package disk keeps the data of an image store on disk: content, metadata, leases, and the layers
// of each snapshotter. It does not interpret images.
package disk

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
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/berth-cri/berth/pkg/engine/image/layerproc"
)

// Namespace is berth's namespace in containerd's metadata.
const Namespace = "berth"

// openTimeout is how long Open waits for another process to release the root.
const openTimeout = 2 * time.Second

// Files is the data of a store on disk: content, metadata, the layers of each snapshotter, and the
// directories of containers.
type Files struct {
	Root string
	// Writable is the directory of writable layers.
	Writable string
	// Snapshotter is the name of the default snapshotter.
	Snapshotter string

	bolt    *bolt.DB
	DB      *metadata.DB
	Content content.Store
	Images  images.Store
	Leases  leases.Manager
	Layers  map[string]*Layers
	// Proof caches whether the kernel supports layered snapshotters.
	Proof   overlayProof
	Flusher *Flusher
	// Changed receives a value when a proxy snapshotter becomes unresponsive, or answers again.
	Changed chan struct{}
}

// Config has the paths and snapshotters of image.Config.
type Config struct {
	Root, WritableRoot string
	// Snapshotter is the default, and Others are the addresses of proxy snapshotters.
	Snapshotter string
	Others      map[string]string
	Events      events.Publisher
}

// Open opens or creates the data at root.
func Open(ctx context.Context, c Config) (_ *Files, retErr error) {
	f := &Files{Root: c.Root, Writable: ownPart(c.WritableRoot, c.Root), Snapshotter: c.Snapshotter, Layers: map[string]*Layers{}, Changed: make(chan struct{}, 1)}
	defer func() {
		if retErr != nil {
			retErr = errors.Join(retErr, f.Close())
		}
	}()
	if err := f.open(ctx, c); err != nil {
		return nil, err
	}
	return f, nil
}

// Layers is one snapshotter, with its state in this daemon.
type Layers struct {
	snapshots.Snapshotter
	Name string
	Kind snapshotterKind
	// raw is the snapshotter itself; Snapshotter is the metadata's, which calls raw.
	raw     snapshots.Snapshotter
	Rebases *rebases
	// Broken is why this snapshotter cannot be used on this node, or nil.
	Broken error
	// Proxied is set for a proxy snapshotter.
	Proxied *Proxied
}

// TolerateProxied returns err. An error of a proxy snapshotter is logged instead: it must not block
// other work.
func (l *Layers) TolerateProxied(ctx context.Context, err error) error {
	if err == nil || l.Proxied == nil {
		return err
	}
	log.G(ctx).WithError(err).WithField("snapshotter", l.Name).Warn("Failed to access snapshots; continuing without them")
	return nil
}

// WalkQuickly is Walk with a short time limit for proxy snapshotters.
func (l *Layers) WalkQuickly(ctx context.Context, f snapshots.WalkFunc) error {
	if l.Proxied != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ProxiedStart)
		defer cancel()
	}
	return l.Walk(ctx, f)
}

// MarkForCollection makes the next collection visit a snapshotter: a collection visits only
// snapshotters with removals since the last one.
func (l *Layers) MarkForCollection(ctx context.Context) error {
	key := "berth-collect-" + rand.Text()
	if _, err := l.Prepare(ctx, key, ""); err != nil {
		return err
	}
	if err := l.Remove(ctx, key); !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// Unusable returns an error if the snapshotter cannot be called now.
func (l *Layers) Unusable() error {
	if l.Broken == nil && l.Proxied != nil {
		return l.Proxied.ready()
	}
	return l.Broken
}

// InNamespace returns ctx with berth's namespace in the metadata.
func InNamespace(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, Namespace)
}

// Path returns a path below the store's root.
func (f *Files) Path(elem ...string) string {
	return filepath.Join(append([]string{f.Root}, elem...)...)
}

// WritablePath returns a path below the directory of writable layers.
func (f *Files) WritablePath(elem ...string) string {
	return filepath.Join(append([]string{f.Writable}, elem...)...)
}

// ownPart returns the directory of one store's writable layers. Stores must not share it: each
// deletes everything there that does not belong to its own containers.
func ownPart(writable, root string) string {
	if writable == root {
		return root
	}
	return filepath.Join(writable, "berth-"+digest.FromString(root).Encoded()[:12])
}

func (f *Files) open(ctx context.Context, c Config) error {
	for _, dir := range []string{f.Root, f.Writable, f.WritablePath(RootfsDir), f.WritablePath(TrashDir), f.Path(EmptyDir), f.Path(SnapshotsDir), f.Path(UnflushedDir)} {
		// Only root may enter: images have setuid programs and secrets.
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	var err error
	if f.Flusher, err = newFlusher(f.Root, f.Path(UnflushedDir)); err != nil {
		return err
	}
	blobs, err := local.NewStore(f.Path("content"))
	if err != nil {
		return fmt.Errorf("content: %w", err)
	}
	if err := f.openBolt(); err != nil {
		return err
	}
	for name, kind := range snapshotterKinds {
		f.Layers[name] = f.openLayers(ctx, name, kind)
	}
	if err := f.openProxied(c.Others); err != nil {
		return err
	}
	raw := map[string]snapshots.Snapshotter{}
	for name, l := range f.Layers {
		if l.Broken == nil {
			raw[name] = l.raw
		}
	}
	var opts []metadata.DBOpt
	if c.Events != nil {
		opts = append(opts, metadata.WithEventsPublisher(c.Events))
	}
	f.DB = metadata.NewDB(f.bolt, blobs, raw, opts...)
	if err := f.DB.Init(ctx); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	for name, l := range f.Layers {
		l.Snapshotter = f.DB.Snapshotter(name)
	}
	f.Content = f.DB.ContentStore()
	f.Images = metadata.NewImageStore(f.DB)
	f.Leases = metadata.NewLeaseManager(f.DB)
	return nil
}

// openLayers opens a snapshotter. A snapshotter that does not work here fails only when it is used.
func (f *Files) openLayers(ctx context.Context, name string, kind snapshotterKind) *Layers {
	l := &Layers{Name: name, Kind: kind, Rebases: newRebases()}
	if kind.Layered {
		if _, l.Broken = f.Proof.Get(f.Root, f.Writable); l.Broken != nil {
			log.G(ctx).WithError(l.Broken).WithField("snapshotter", name).Warn("Snapshotter does not work on this node")
			return l
		}
	}
	if err := os.MkdirAll(f.WritablePath(RootfsDir, name), 0o700); err != nil && !IsNoSpace(err) {
		l.Broken = err
		return l
	}
	if l.raw, l.Broken = kind.open(f.Path(SnapshotsDir, name)); l.Broken != nil {
		log.G(ctx).WithError(l.Broken).WithField("snapshotter", name).Warn("Snapshotter does not work on this node")
	}
	return l
}

// openProxied creates the clients of proxy snapshotters, without contacting them. It includes
// snapshotters that are not configured any more but have snapshots in the metadata: containers may
// have snapshots there that must be removed.
func (f *Files) openProxied(others map[string]string) error {
	addresses := map[string]string{}
	maps.Copy(addresses, others)
	used, err := f.namedInMetadata()
	if err != nil {
		return err
	}
	for _, name := range used {
		if _, known := addresses[name]; !known && f.Layers[name] == nil {
			addresses[name] = ""
		}
	}
	for name, address := range addresses {
		p, err := newProxied(name, address, f.Changed)
		if err != nil {
			return err
		}
		f.Layers[name] = &Layers{Name: name, Kind: snapshotterKind{Remote: true}, Rebases: newRebases(), raw: p, Proxied: p}
	}
	return nil
}

// namedInMetadata returns the snapshotters in the metadata, or the snapshots of the given one.
func (f *Files) namedInMetadata(of ...string) (names []string, err error) {
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

func (f *Files) openBolt() error {
	options := *bolt.DefaultOptions
	options.NoFreelistSync = true
	options.NoStatistics = true
	options.Timeout = openTimeout
	var err error
	if f.bolt, err = bolt.Open(f.Path("meta.db"), 0o600, &options); err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			return fmt.Errorf("another process has the image store open; stop it first: %w", errdefs.ErrFailedPrecondition)
		}
		return fmt.Errorf("metadata: %w", err)
	}
	return nil
}

// Close closes the snapshotters and the metadata.
func (f *Files) Close() error {
	var errs []error
	for _, l := range f.Layers {
		if l.raw != nil {
			errs = append(errs, l.raw.Close())
		}
	}
	if f.DB != nil {
		errs = append(errs, f.DB.Close())
	} else if f.bolt != nil {
		errs = append(errs, f.bolt.Close())
	}
	return errors.Join(errs...)
}

// LayersOf returns the snapshotter of a name (empty: the default).
func (f *Files) LayersOf(name string) (*Layers, error) {
	name = cmp.Or(name, f.Snapshotter)
	l, ok := f.Layers[name]
	if !ok {
		return nil, UnknownSnapshotter(name, slices.Sorted(maps.Keys(f.Layers)))
	}
	if l.Proxied != nil {
		return l, l.Proxied.ready()
	}
	broken := l.Broken
	if broken == nil && l.Kind.Layered {
		_, broken = f.Proof.Get(f.Root, f.Writable)
	}
	if broken != nil {
		return nil, fmt.Errorf("snapshotter %s does not work on %s: %v: %w", name, f.Root, broken, errdefs.ErrFailedPrecondition)
	}
	return l, nil
}

// Names below the store's root; RootfsDir and TrashDir are below Files.Writable.
const (
	SnapshotsDir = "snapshots"
	// RootfsDir has <snapshotter>/<container id>/{fs,work,volumes} for each container.
	RootfsDir = "rootfs"
	// TrashDir has what was in RootfsDir, until it is deleted.
	TrashDir = "trash"
	// UnflushedDir has the marks of layers that may not be on disk.
	UnflushedDir = "unflushed"
	// PreloadedFile lists the archives that were imported.
	PreloadedFile = "preloaded.json"
	// EmptyDir is a directory without content.
	EmptyDir = "empty"
)

// RootfsPrefix begins the name of the snapshot that is a container's root filesystem; the container
// id follows. Layered snapshotters need no such snapshot.
const RootfsPrefix = "berth-rootfs-"

// LayersFor checks a container id and returns its snapshotter.
func (f *Files) LayersFor(containerID, snapshotter string) (*Layers, error) {
	if containerID == "" || containerID != filepath.Base(containerID) || strings.HasPrefix(containerID, ".") {
		return nil, fmt.Errorf("container id %.100q cannot name a root filesystem: %w", containerID, errdefs.ErrInvalidArgument)
	}
	return f.LayersOf(snapshotter)
}

// RootfsPath is the directory of a container's writable layer.
func (f *Files) RootfsPath(snapshotter, containerID string) string {
	return f.WritablePath(RootfsDir, snapshotter, containerID)
}

// VolumesPath is the directory of a container's own volumes.
func (f *Files) VolumesPath(snapshotter, containerID string) string {
	return filepath.Join(f.RootfsPath(snapshotter, containerID), "volumes")
}

// BlobPath is the file of a blob.
func (f *Files) BlobPath(d digest.Digest) string {
	return f.Path("content", "blobs", d.Algorithm().String(), d.Encoded())
}

// UnpackTarget returns where to unpack. It needs no mount: whiteouts are written as overlayfs does.
func UnpackTarget(mounts []mount.Mount) (layerproc.Layer, error) {
	to := layerproc.Layer{}
	if len(mounts) == 1 && mounts[0].Type == "bind" {
		to.Root = mounts[0].Source
	} else if len(mounts) == 1 && mounts[0].Type == "overlay" {
		upper, below := readOverlay(mounts[0].Options)
		to = layerproc.Layer{Root: upper, Overlay: true, Below: below.Lower}
	}
	if to.Root == "" {
		return to, fmt.Errorf("unpack into mounts of an unexpected kind: %w", errdefs.ErrInternal)
	}
	return to, nil
}
