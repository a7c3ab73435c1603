package image

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Store keeps the images of one node. It puts the parts together that have one
// concern each, and runs what they do in the background.
type Store struct {
	*index
	*puller
	*rootfses
	*meter
	*archives

	cfg     Config
	files   *files
	reader  *reader
	catalog *catalog
	views   *views
	work    work
	clients *Clients
	// nearlyFull says whether a removal waits until its space is free.
	nearlyFull func(root string) bool

	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Open opens or makes the store at c.Root. It is one process's: a second Open
// of the same root fails after a few seconds.
func Open(ctx context.Context, c Config) (_ *Store, retErr error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	f, err := openFiles(ctx, diskConfig{
		Root: c.Root, WritableRoot: c.WritableRoot, Snapshotter: c.DefaultSnapshotter, Others: c.Snapshotters, Events: c.Events,
	})
	if err != nil {
		return nil, fmt.Errorf("open image store %s: %w", c.Root, err)
	}
	defer func() {
		if retErr != nil {
			retErr = errors.Join(retErr, f.close())
		}
	}()
	s, err := newStore(f, c)
	if err != nil {
		return nil, err
	}
	if err := s.recover(inNamespace(ctx)); err != nil {
		return nil, fmt.Errorf("read image store %s: %w", c.Root, err)
	}
	s.startWorkers(context.WithoutCancel(ctx))
	return s, nil
}

// newStore puts the parts together.
func newStore(f *files, c Config) (_ *Store, err error) {
	s := &Store{cfg: c, files: f, nearlyFull: nearlyFull}
	s.catalog = newCatalog(f, newReader(f.content, c.Limits), newIndex(c.PinnedImages, c.CheckpointImages), c.Events)
	s.index, s.reader = s.catalog.index, s.catalog.reader
	u := newUnpacker(f, s.reader, unpackConfig{Downloads: c.MaxConcurrentDownloads, DiscardLayers: c.DiscardLayers, KeysDir: c.DecryptionKeysDir})
	s.views = newViews(f, u, s.hasChain)
	s.work = s.views.work
	s.meter = newMeter(f)
	s.rootfses = newRootfses(s.views, s.meter, c.MountOptions, c.SyncRootfs)
	s.puller, err = newPuller(pullConfig{HostsDir: c.HostsDir, Verifiers: c.Verifiers, ProgressTimeout: c.PullProgressTimeout}, s.catalog, s.views)
	s.archives = newArchives(s.puller)
	s.clients = newClients(Parts{f, s.catalog, s.archives, s.work.collector})
	return s, err
}

// Close ends the pulls and the background work, and closes the store.
func (s *Store) Close() error {
	s.archives.end()
	s.puller.close()
	s.stop()
	s.wg.Wait()
	s.views.unpacker.close()
	return s.files.close()
}

// Root is the directory of the store, which is on the filesystem that Usage is about.
func (s *Store) Root() string { return s.cfg.Root }

// Whole returns an image with its whole Config: of a large one only the user
// stays in memory. errdefs.ErrFailedPrecondition if it would take too much.
func (s *Store) Whole(ctx context.Context, img *Image) (*Image, error) {
	whole, err := s.reader.whole(ctx, img)
	if err != nil && !s.contentWhole(inNamespace(ctx), img, false) {
		s.incomplete.Store(img.ID, true)
	}
	return whole, err
}

// Fetched is how many bytes registries have sent since Open.
func (s *Store) Fetched() int64 { return s.underway.fetched.Load() }

// Running is how many pulls and imports have not ended.
func (s *Store) Running() int { return s.underway.running() }

// Underway are the pulls that have not ended, the oldest first.
func (s *Store) Underway(ctx context.Context) []Underway {
	return s.underway.list(inNamespace(ctx), s.files.content)
}

// Ready says whether pods can have a snapshotter (empty: the default) at this moment,
// and if not why.
func (s *Store) Ready(snapshotter string) error {
	_, _, err := s.files.layersOf(snapshotter)
	return err
}

// SnapshotterChanges has something to read when Ready says something else of any
// snapshotter. It has one reader.
func (s *Store) SnapshotterChanges() <-chan struct{} { return s.files.changed }

// Clients are those of this store.
func (s *Store) Clients() *Clients { return s.clients }
