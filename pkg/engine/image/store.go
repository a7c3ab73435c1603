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
	// checkpoints are names of images whose processes may go on here.
	checkpoints pinPatterns
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
	f, err := openFiles(ctx, c)
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
func newStore(f *files, c Config) (*Store, error) {
	s := &Store{cfg: c, files: f, nearlyFull: nearlyFull, work: work{collector: newWorker(), counter: newWorker()}}
	s.reader = newReader(f.content, c.Limits)
	s.catalog = &catalog{index: newIndex(newPinPatterns(c.PinnedImages)), files: f, reader: s.reader, events: c.Events}
	u := newUnpacker(f, s.reader, c)
	s.views = &views{files: f, unpacker: u, table: newTable(), hasImage: s.catalog.hasChain, work: s.work}
	s.meter = &meter{files: f, worker: newWorker(), known: map[measureKey]measured{}, wanted: map[measureKey]bool{}}
	s.rootfses = &rootfses{files: f, views: s.views, meter: s.meter, work: s.work, sweeper: newWorker(), cfg: c, late: map[string]map[string]bool{}}
	s.clients, s.checkpoints = &Clients{store: s}, newPinPatterns(c.CheckpointImages)
	var err error
	s.puller, err = newPuller(c, s.reader, s.catalog, u, s.views, s.work)
	s.archives = newArchives(s.puller)
	return s, err
}

// Close ends the pulls and the background work, and closes the store.
func (s *Store) Close() error {
	s.archives.end()
	s.flights.close()
	s.stop()
	s.wg.Wait()
	s.views.unpacker.children.close()
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

// Get finds an image by tag, short name, digest, tag and digest, id with or
// without "sha256:", or a unique prefix (six digits or more) of an id.
// errdefs.ErrNotFound when there is none, ErrInvalidArgument when a prefix fits
// several. It reads memory only.
func (s *Store) Get(ref string) (*Image, error) { return s.catalog.get(ref, AnyPlatform) }

// Find is Get for one who wants the image of a platform. An id stands for its image,
// whatever that was built for.
func (s *Store) Find(ref string, wanted Platform) (*Image, error) { return s.catalog.get(ref, wanted) }

// List returns all images, sorted by ID. It reads memory only.
func (s *Store) List() []*Image { return s.catalog.list() }
