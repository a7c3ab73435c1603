package image

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
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
	// stack is what root filesystems are made of, if the snapshotter is layered.
	stack stack
}

// views knows which views exist, and which containers need them.
type views struct {
	mu    sync.Mutex
	known map[viewKey]*view
	uses  map[string]map[viewKey]struct{}
	// retained is set once the engine said what containers use. Before that
	// nobody knows, and no view may go.
	retained bool
}

func newViews() *views {
	return &views{known: map[viewKey]*view{}, uses: map[string]map[viewKey]struct{}{}}
}

func (v *views) put(k viewKey, known *view) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known[k] = known
}

func (v *views) get(k viewKey) *view {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.known[k]
}

// use notes that owner needs a view, and returns it if it exists. Added is false
// if that was noted before.
func (v *views) use(owner string, k viewKey) (known *view, added bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.uses[owner] == nil {
		v.uses[owner] = map[viewKey]struct{}{}
	}
	_, had := v.uses[owner][k]
	v.uses[owner][k] = struct{}{}
	return v.known[k], !had
}

// unuse takes one use back.
func (v *views) unuse(owner string, k viewKey) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.uses[owner], k)
	if len(v.uses[owner]) == 0 {
		delete(v.uses, owner)
	}
}

// release takes all uses of an owner back and returns them.
func (v *views) release(owner string) []viewKey {
	v.mu.Lock()
	defer v.mu.Unlock()
	var keys []viewKey
	for k := range v.uses[owner] {
		keys = append(keys, k)
	}
	delete(v.uses, owner)
	return keys
}

// retain adds the uses that the engine knows from its records.
func (v *views) retain(inUse []Use, key func(Use) viewKey) {
	for _, u := range inUse {
		v.use(u.Owner, key(u))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.retained = true
}

// idle returns the views that no container uses.
func (v *views) idle() []viewKey {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.retained {
		return nil
	}
	var keys []viewKey
	for k := range v.known {
		if !v.inUse(k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// giveUp forgets a view unless somebody uses it by now.
func (v *views) giveUp(k viewKey) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.inUse(k) {
		return false
	}
	delete(v.known, k)
	return true
}

// inUse wants mu held.
func (v *views) inUse(k viewKey) bool {
	for _, keys := range v.uses {
		if _, ok := keys[k]; ok {
			return true
		}
	}
	return false
}

// hold notes that owner needs the image's layers and returns the view of them,
// unpacking the image if need be. Undo takes the note back if this call made it.
func (s *Store) hold(ctx context.Context, owner string, k viewKey, img *Image) (v *view, undo func(), err error) {
	v, added := s.views.use(owner, k)
	undo = func() {
		if added {
			s.views.unuse(owner, k)
		}
	}
	if v == nil {
		if v, err = s.ensureView(ctx, k, img); err != nil {
			undo()
		}
	}
	return v, undo, err
}

// ensureView makes the view of an image that is in the store.
func (s *Store) ensureView(ctx context.Context, k viewKey, img *Image) (v *view, err error) {
	err = s.withUnpacked(ctx, k, img, func(ctx context.Context, l *layers) error {
		v, err = s.makeView(ctx, l, k)
		return err
	})
	return v, err
}

// withUnpacked unpacks an image that is in the store, if that was not done, and
// calls then while a lease holds the layers.
func (s *Store) withUnpacked(ctx context.Context, k viewKey, img *Image, then func(context.Context, *layers) error) error {
	ctx, lease, err := s.lease(ctx)
	if err != nil {
		return err
	}
	l := s.layers[k.snapshotter]
	if err = s.unpackLocal(ctx, l, k, img); err == nil {
		err = then(ctx, l)
	}
	s.endLease(ctx, lease)
	if err != nil {
		s.collector.kick()
		return s.explainUnpack(k, img, err)
	}
	s.counter.kick()
	return nil
}

func (s *Store) explainUnpack(k viewKey, img *Image, err error) error {
	if isNoSpace(err) {
		return fmt.Errorf("unpack image %s: no space left for images under %s; remove images or enlarge the filesystem: %w", img.ID, s.cfg.Root, errdefs.ErrResourceExhausted)
	}
	return fmt.Errorf("unpack image %s into %s: %w", img.ID, k.snapshotter, err)
}

// makeView makes the view of layers that are unpacked, or finds it.
func (s *Store) makeView(ctx context.Context, l *layers, k viewKey) (*view, error) {
	if err := s.unpacking.Lock(ctx, k.lockKey()); err != nil {
		return nil, err
	}
	defer s.unpacking.Unlock(k.lockKey())
	if v := s.views.get(k); v != nil {
		return v, nil
	}
	labels := snapshots.WithLabels(map[string]string{gcRoot: time.Now().UTC().Format(time.RFC3339)})
	if _, err := l.View(ctx, k.name(), k.chain.String(), labels); err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create view: %w", err)
	}
	v, err := s.readView(ctx, l, k.name())
	if err != nil {
		return nil, err
	}
	s.views.put(k, v)
	return v, nil
}

func (s *Store) readView(ctx context.Context, l *layers, name string) (*view, error) {
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

// dropIdleViews removes the views that neither an image nor a container needs.
func (s *Store) dropIdleViews(ctx context.Context) {
	for _, k := range s.views.idle() {
		if s.index.hasChain(k.chain) {
			continue
		}
		if err := s.dropView(ctx, k); err != nil {
			log.G(ctx).WithError(err).WithField("view", k.name()).Warn("Failed to remove unused layers")
		}
	}
}

func (s *Store) dropView(ctx context.Context, k viewKey) error {
	if err := s.unpacking.Lock(ctx, k.lockKey()); err != nil {
		return err
	}
	defer s.unpacking.Unlock(k.lockKey())
	if !s.views.giveUp(k) {
		return nil
	}
	if err := s.layers[k.snapshotter].Remove(ctx, k.name()); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// lease keeps what is written under the returned context from being collected.
func (s *Store) lease(ctx context.Context) (context.Context, leases.Lease, error) {
	l, err := s.leases.Create(ctx, leases.WithRandomID())
	if err != nil {
		return ctx, l, fmt.Errorf("lease: %w", err)
	}
	return leases.WithLease(ctx, l.ID), l, nil
}

// endLease gives up what only the lease held. It works after ctx ended.
func (s *Store) endLease(ctx context.Context, l leases.Lease) {
	ctx = context.WithoutCancel(ctx)
	if err := s.leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).Warn("Failed to delete image lease; the next start will retry")
	}
}
