package image

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// viewPrefix begins the snapshot name of a view; the chain id follows.
const viewPrefix = "berth-view-"

// scratch stands for the chain id of an image without layers.
const scratch = "scratch"

// gcRoot keeps a snapshot, and with it its parents, from being collected.
const gcRoot = "containerd.io/gc.root"

// viewKey identifies unpacked layers.
type viewKey struct {
	snapshotter string
	chain       digest.Digest
}

func (k viewKey) name() string {
	if k.chain == "" {
		return viewPrefix + scratch
	}
	return viewPrefix + k.chain.String()
}

func (k viewKey) lockKey() string { return k.snapshotter + "/" + k.name() }

func chainOfView(name string) digest.Digest {
	if chain := strings.TrimPrefix(name, viewPrefix); chain != scratch {
		return digest.Digest(chain)
	}
	return ""
}

// view is an image's layers in a snapshotter, all unpacked. It is immutable.
type view struct {
	mounts []mount.Mount
	// unread says that it is there, and that its mounts were not asked for yet.
	unread bool
	// stack is what root filesystems are made of, if the snapshotter is layered.
	stack stack
}

// table knows which views exist, and which containers need them.
type table struct {
	mu    sync.Mutex
	known map[viewKey]*view
	uses  map[string]map[viewKey]struct{}
	// retained is set once the engine said what containers use. Before that
	// nobody knows, and no view may go.
	retained bool
}

func newTable() *table {
	return &table{known: map[viewKey]*view{}, uses: map[string]map[viewKey]struct{}{}}
}

func (t *table) put(k viewKey, known *view) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known[k] = known
}

func (t *table) get(k viewKey) *view {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[k]
}

// use notes that owner needs a view, and returns it if it exists. Added is false
// if that was noted before.
func (t *table) use(owner string, k viewKey) (known *view, added bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.uses[owner] == nil {
		t.uses[owner] = map[viewKey]struct{}{}
	}
	_, had := t.uses[owner][k]
	t.uses[owner][k] = struct{}{}
	return t.known[k], !had
}

// forget is for a view that is gone, whether it is used or not.
func (t *table) forget(k viewKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.known, k)
}

// unuse takes one use back.
func (t *table) unuse(owner string, k viewKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.uses[owner], k)
	if len(t.uses[owner]) == 0 {
		delete(t.uses, owner)
	}
}

// release takes all uses of an owner back and returns them.
func (t *table) release(owner string) []viewKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	var keys []viewKey
	for k := range t.uses[owner] {
		keys = append(keys, k)
	}
	delete(t.uses, owner)
	return keys
}

// retain adds the uses that the engine knows from its records.
func (t *table) retain(inUse []Use, key func(Use) viewKey) {
	for _, u := range inUse {
		t.use(u.Owner, key(u))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.retained = true
}

// idle returns the views that no container uses.
func (t *table) idle() []viewKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.retained {
		return nil
	}
	var keys []viewKey
	for k := range t.known {
		if !t.inUse(k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// giveUp forgets a view unless somebody uses it by now.
func (t *table) giveUp(k viewKey) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.inUse(k) {
		return false
	}
	delete(t.known, k)
	return true
}

// inUse wants mu held.
func (t *table) inUse(k viewKey) bool {
	for _, keys := range t.uses {
		if _, ok := keys[k]; ok {
			return true
		}
	}
	return false
}

// views owns the views of images: it makes them, and removes those that nobody needs.
type views struct {
	files    *files
	unpacker *unpacker
	table    *table
	// hasImage says whether an image consists of the layers of a chain.
	hasImage func(chain digest.Digest) bool
	work     work
}

// newViews returns the views of a store, which load adds to.
func newViews(f *files, u *unpacker, hasImage func(chain digest.Digest) bool) *views {
	return &views{files: f, unpacker: u, table: newTable(), hasImage: hasImage, work: work{collector: newWorker(), counter: newWorker()}}
}

// work is what is done in the background.
type work struct{ collector, counter *worker }

// hold notes that owner needs the image's layers and returns the view of them,
// unpacking the image if need be. Undo takes the note back if this call made it.
func (vs *views) hold(ctx context.Context, owner string, k viewKey, img *Image) (v *view, undo func(), err error) {
	v, added := vs.table.use(owner, k)
	undo = func() {
		if added {
			vs.table.unuse(owner, k)
		}
	}
	if v == nil || v.unread || !vs.whole(k) {
		if v, err = vs.ensure(ctx, k, img); err != nil {
			undo()
		}
	}
	return v, undo, err
}

// ensure makes the view of an image that is in the store.
func (vs *views) ensure(ctx context.Context, k viewKey, img *Image) (v *view, err error) {
	err = vs.withUnpacked(ctx, k, img, func(ctx context.Context, l *layers) error {
		v, err = vs.build(ctx, l, k)
		return err
	})
	return v, err
}

// withUnpacked unpacks an image that is in the store, if that was not done, and
// calls then while a lease holds the layers.
func (vs *views) withUnpacked(ctx context.Context, k viewKey, img *Image, then func(context.Context, *layers) error) error {
	ctx, lease, err := vs.files.lease(ctx, nil)
	if err != nil {
		return err
	}
	l := vs.files.layers[k.snapshotter]
	err = vs.mended(ctx, k, img, func() error {
		if k.chain != "" {
			if err := vs.unpacker.unpackStored(ctx, l, k.snapshotter, img); err != nil {
				return fmt.Errorf("%w: %w", errUnpack, err)
			}
		}
		return then(ctx, l)
	})
	vs.files.endLease(ctx, lease)
	if err != nil {
		vs.work.collector.kick()
		return vs.explainUnpack(k, img, err)
	}
	vs.work.counter.kick()
	return nil
}

var errUnpack = errors.New("unpack what is stored")

func (vs *views) explainUnpack(k viewKey, img *Image, err error) error {
	if isNoSpace(err) {
		return fmt.Errorf("unpack image %s: no space left for images under %s (%s); remove images or enlarge the filesystem: %w", img.ID, vs.files.root, atomicfile.Room(vs.files.root), errdefs.ErrResourceExhausted)
	}
	return fmt.Errorf("unpack image %s into %s: %w", img.ID, k.snapshotter, err)
}

// build makes the view of layers that are unpacked, or finds it.
func (vs *views) build(ctx context.Context, l *layers, k viewKey) (*view, error) {
	if err := vs.unpacker.locks.Lock(ctx, k.lockKey()); err != nil {
		return nil, err
	}
	defer vs.unpacker.locks.Unlock(k.lockKey())
	if v := vs.table.get(k); v != nil && !v.unread {
		return v, nil
	}
	labels := snapshots.WithLabels(map[string]string{gcRoot: time.Now().UTC().Format(time.RFC3339)})
	if _, err := l.View(ctx, k.name(), k.chain.String(), labels); err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create view: %w", err)
	}
	v, err := vs.read(ctx, l, k.name())
	if err != nil {
		return nil, err
	}
	vs.table.put(k, v)
	return v, nil
}

func (vs *views) read(ctx context.Context, l *layers, name string) (*view, error) {
	mounts, err := l.Mounts(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read view: %w", err)
	}
	v := &view{mounts: mounts}
	if !l.kind.layered {
		return v, nil
	}
	var ok bool
	if v.stack, ok = readStack(mounts); !ok {
		return nil, fmt.Errorf("view %s has mounts of an unexpected kind: %w", name, errdefs.ErrInternal)
	}
	return v, nil
}

// dropIdle removes the views that neither an image nor a container needs.
func (vs *views) dropIdle(ctx context.Context) {
	for _, k := range vs.table.idle() {
		if vs.hasImage(k.chain) {
			continue
		}
		if err := vs.drop(ctx, k); err != nil {
			log.G(ctx).WithError(err).WithField("view", k.name()).Warn("Failed to remove unused layers")
		}
	}
}

func (vs *views) drop(ctx context.Context, k viewKey) error {
	if err := vs.unpacker.locks.Lock(ctx, k.lockKey()); err != nil {
		return err
	}
	defer vs.unpacker.locks.Unlock(k.lockKey())
	if !vs.table.giveUp(k) {
		return nil
	}
	if err := vs.files.layers[k.snapshotter].Remove(ctx, k.name()); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// load remembers which views a snapshotter has. The mounts of those that it may have to
// work for are asked for when they are needed.
func (vs *views) load(ctx context.Context, name string, l *layers) error {
	return l.Walk(ctx, func(ctx context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindView || !strings.HasPrefix(info.Name, viewPrefix) {
			return nil
		}
		v := &view{unread: true}
		if l.kind.layered {
			var err error
			if v, err = vs.read(ctx, l, info.Name); err != nil {
				log.G(ctx).WithError(err).WithFields(log.Fields{"snapshotter": name, "view": info.Name}).Warn("Failed to read layers; they will be read again when they are needed")
				return nil
			}
		}
		vs.table.put(viewKey{snapshotter: name, chain: chainOfView(info.Name)}, v)
		return nil
	})
}

// keyOf is where the layers of a chain are for who uses a snapshotter. The files of an
// artifact are where they need no copy.
func (vs *views) keyOf(snapshotter string, chain digest.Digest) viewKey {
	if IsArtifact(chain) && vs.files.layers[Overlayfs].broken == nil {
		snapshotter = Overlayfs
	}
	return viewKey{snapshotter: snapshotter, chain: chain}
}
