// Package image keeps container images and makes root filesystems from them.
//
// A [Store] is one directory: content, metadata, the layers of each snapshotter, and the writable
// layers of containers. It uses containerd's libraries in this process, without a containerd
// daemon. [Service] serves the CRI from a Store.
//
// # Order of writes
//
// An image's record is written after its last layer is fetched and unpacked, and the memory index
// changes after the record: a reader never sees a partial image. Until then a lease holds
// everything that a pull writes. A lease that Open finds, unless it is a client's, belongs to a
// killed pull: it is kept for the next attempt or deleted. Partially unpacked layers are removed
// before anything is served, so none is taken for complete.
//
// In overlayfs and erofs a container costs no database write: each chain of layers has one
// read-only view, with the directories of the layers, and a root filesystem is an overlay of these
// with two directories of the container. Other snapshotters get a snapshot for each container.
//
// # Concurrency
//
// All methods are safe for concurrent use. Calls that only read take no lock that a download, an
// unpacking or a collection holds.
package image

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/berth-cri/berth/pkg/engine/containerdapi/stores"
	"github.com/berth-cri/berth/pkg/engine/image/archive"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/progress"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
)

// Store keeps the images of one node. It connects its parts and runs their background work.
type Store struct {
	*catalog.Index
	*containerfs.Roots
	*archive.Archives
	Meter *containerfs.Meter

	cfg     Config
	files   *disk.Files
	catalog *catalog.Catalog
	views   *containerfs.Views
	puller  *pull.Puller
	clients *stores.Clients
	// nearlyFull reports whether a removal waits until its space is free.
	nearlyFull func(root string) bool

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Open opens or creates the store at c.Root. Only one process can have it open: a second Open of
// the same root fails after a few seconds.
func Open(ctx context.Context, c Config) (_ *Store, retErr error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	f, err := disk.Open(ctx, disk.Config{
		Root: c.Root, WritableRoot: c.WritableRoot, Snapshotter: c.DefaultSnapshotter, Others: c.Snapshotters, Events: c.Events,
	})
	if err != nil {
		return nil, fmt.Errorf("open image store %s: %w", c.Root, err)
	}
	defer func() {
		if retErr != nil {
			retErr = errors.Join(retErr, f.Close())
		}
	}()
	s, err := newStore(f, c)
	if err != nil {
		return nil, err
	}
	if err := s.recover(disk.InNamespace(ctx)); err != nil {
		return nil, fmt.Errorf("read image store %s: %w", c.Root, err)
	}
	s.startWorkers(context.WithoutCancel(ctx))
	return s, nil
}

func newStore(f *disk.Files, c Config) (_ *Store, err error) {
	s := &Store{cfg: c, files: f, nearlyFull: nearlyFull}
	s.catalog = catalog.New(f, catalog.NewReader(f.Content, c.Limits), catalog.NewIndex(c.PinnedImages, c.CheckpointImages), c.Events)
	s.Index = s.catalog.Index
	u := unpack.New(f, s.catalog.Reader, unpack.Config{Downloads: c.MaxConcurrentDownloads, DiscardLayers: c.DiscardLayers, KeysDir: c.DecryptionKeysDir})
	s.views = containerfs.NewViews(f, u, s.HasChain)
	s.Meter = containerfs.NewMeter(f)
	s.Roots = containerfs.NewRoots(s.views, s.Meter, c.MountOptions, c.SyncRootfs)
	s.puller, err = pull.New(pull.Config{HostsDir: c.HostsDir, Verifiers: c.Verifiers, ProgressTimeout: c.PullProgressTimeout}, s.catalog, s.views)
	s.Archives = archive.New(s.puller)
	s.clients = stores.New(stores.Parts{Files: f, Catalog: s.catalog, Archives: s.Archives, Collector: s.views.Work.Collector})
	return s, err
}

// Close ends the pulls and the background work, and closes the store.
func (s *Store) Close() error {
	s.puller.Close()
	s.stop()
	s.wg.Wait()
	s.views.Unpacker.Close()
	return s.files.Close()
}

// Root is the directory of the store, on the filesystem of images that ImageFsInfo reports.
func (s *Store) Root() string { return s.cfg.Root }

// Pull pulls an image; see [pull.Puller.Pull].
func (s *Store) Pull(ctx context.Context, r pull.Request) (*catalog.Image, error) {
	return s.puller.Pull(ctx, r)
}

// Whole returns an image with its complete Config: of a large Config only the user is in memory. It
// returns errdefs.ErrFailedPrecondition for an image that cannot run.
func (s *Store) Whole(ctx context.Context, img *catalog.Image) (*catalog.Image, error) {
	whole, err := s.catalog.Reader.Whole(ctx, img)
	if err != nil && !s.puller.ContentWhole(disk.InNamespace(ctx), img, false) {
		s.puller.Incomplete.Store(img.ID, true)
	}
	return whole, err
}

// Fetched is the number of bytes received from registries since Open.
func (s *Store) Fetched() int64 { return s.puller.Underway.Fetched.Load() }

// Running is the number of running pulls and imports.
func (s *Store) Running() int { return s.puller.Underway.Running() }

// Underway lists the running pulls, the oldest first.
func (s *Store) Underway(ctx context.Context) []progress.Underway {
	return s.puller.Underway.List(disk.InNamespace(ctx), s.files.Content)
}

// Ready returns an error if pods cannot use a snapshotter (empty: the default) now.
func (s *Store) Ready(snapshotter string) error {
	_, err := s.files.LayersOf(snapshotter)
	return err
}

// SnapshotterChanges receives a value when Ready changes for a snapshotter. It has one reader.
func (s *Store) SnapshotterChanges() <-chan struct{} { return s.files.Changed }

// Clients returns the access of containerd API clients to this store.
func (s *Store) Clients() *stores.Clients { return s.clients }
