package containerfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/unpack"
)

// viewPrefix begins the snapshot name of a view; the chain id follows.
const viewPrefix = "berth-view-"

// scratch stands for the chain id of an image without layers.
const scratch = "scratch"

// GCRoot keeps a snapshot, and with it its parents, from being collected.
const GCRoot = "containerd.io/gc.root"

// ViewKey identifies unpacked layers.
type ViewKey struct {
	Snapshotter string
	Chain       digest.Digest
}

func (k ViewKey) name() string {
	if k.Chain == "" {
		return viewPrefix + scratch
	}
	return viewPrefix + k.Chain.String()
}

func (k ViewKey) lockKey() string { return k.Snapshotter + "/" + k.name() }

func chainOfView(name string) digest.Digest {
	if chain := strings.TrimPrefix(name, viewPrefix); chain != scratch {
		return digest.Digest(chain)
	}
	return ""
}

// View is an image's layers in a snapshotter, all unpacked. It is immutable.
type View struct {
	mounts []mount.Mount
	// Stack holds the layers for root filesystems, if the snapshotter is layered.
	Stack disk.Stack
}

// Views owns the views of images: it makes them, and removes unused ones.
type Views struct {
	Files    *disk.Files
	Unpacker *unpack.Unpacker
	// hasImage reports whether an image consists of the layers of a chain.
	hasImage func(chain digest.Digest) bool
	Work     Work

	mu sync.Mutex
	// known has nil for an existing view that was not read yet.
	known map[ViewKey]*View
	// uses are the views that each container uses.
	uses map[string]map[ViewKey]struct{}
	// retained is set once the engine has passed the uses of containers. No unused view is removed
	// before that.
	retained bool
}

// NewViews returns the views of a store; Load adds the existing ones.
func NewViews(f *disk.Files, u *unpack.Unpacker, hasImage func(chain digest.Digest) bool) *Views {
	return &Views{
		Files: f, Unpacker: u, hasImage: hasImage, Work: Work{Collector: disk.NewWorker(), Counter: disk.NewWorker()},
		known: map[ViewKey]*View{}, uses: map[string]map[ViewKey]struct{}{},
	}
}

// Work has the background workers.
type Work struct{ Collector, Counter *disk.Worker }

func (vs *Views) put(k ViewKey, known *View) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.known[k] = known
}

// Get returns a view, or nil if it does not exist or was not read yet.
func (vs *Views) Get(k ViewKey) *View {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.known[k]
}

// use records that owner uses a view, and returns the view if it exists. added is false if the use
// was recorded before.
func (vs *Views) use(owner string, k ViewKey) (known *View, added bool) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if vs.uses[owner] == nil {
		vs.uses[owner] = map[ViewKey]struct{}{}
	}
	_, had := vs.uses[owner][k]
	vs.uses[owner][k] = struct{}{}
	return vs.known[k], !had
}

// forget removes a view that is gone, even if it is in use.
func (vs *Views) forget(k ViewKey) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	delete(vs.known, k)
}

func (vs *Views) unuse(owner string, k ViewKey) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	delete(vs.uses[owner], k)
	if len(vs.uses[owner]) == 0 {
		delete(vs.uses, owner)
	}
}

// Release removes all uses of an owner and returns them.
func (vs *Views) Release(owner string) []ViewKey {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	keys := slices.Collect(maps.Keys(vs.uses[owner]))
	delete(vs.uses, owner)
	return keys
}

// retain adds the uses in the engine's records.
func (vs *Views) retain(inUse []Use) {
	for _, u := range inUse {
		vs.use(u.Owner, vs.KeyOf(cmp.Or(u.Snapshotter, vs.Files.Snapshotter), u.ChainID))
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.retained = true
}

// idle returns the views that no container uses.
func (vs *Views) idle() []ViewKey {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if !vs.retained {
		return nil
	}
	var keys []ViewKey
	for k := range vs.known {
		if !vs.inUse(k) {
			keys = append(keys, k)
		}
	}
	return keys
}

// forgetIdle forgets a view unless it is in use by now.
func (vs *Views) forgetIdle(k ViewKey) bool {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if vs.inUse(k) {
		return false
	}
	delete(vs.known, k)
	return true
}

// inUse reports whether a container uses a view. The caller holds mu.
func (vs *Views) inUse(k ViewKey) bool {
	for _, keys := range vs.uses {
		if _, ok := keys[k]; ok {
			return true
		}
	}
	return false
}

// Hold records that owner uses the image's layers and returns their view. It unpacks the image if
// necessary. Undo removes the use if this call added it.
func (vs *Views) Hold(ctx context.Context, owner string, k ViewKey, img *catalog.Image) (v *View, undo func(), err error) {
	v, added := vs.use(owner, k)
	undo = func() {
		if added {
			vs.unuse(owner, k)
		}
	}
	if v == nil || !vs.Whole(k) {
		if v, err = vs.ensure(ctx, k, img); err != nil {
			undo()
		}
	}
	return v, undo, err
}

// ensure makes the view of an image in the store.
func (vs *Views) ensure(ctx context.Context, k ViewKey, img *catalog.Image) (v *View, err error) {
	err = vs.withUnpacked(ctx, k, img, func(ctx context.Context, l *disk.Layers) error {
		v, err = vs.Build(ctx, l, k)
		return err
	})
	return v, err
}

// withUnpacked unpacks an image in the store if necessary, and calls f while a lease holds the
// layers.
func (vs *Views) withUnpacked(ctx context.Context, k ViewKey, img *catalog.Image, f func(context.Context, *disk.Layers) error) error {
	ctx, lease, err := vs.Files.Lease(ctx, nil)
	if err != nil {
		return err
	}
	l := vs.Files.Layers[k.Snapshotter]
	err = vs.WithRepair(ctx, k, img, func() error {
		if k.Chain != "" {
			if err := vs.Unpacker.UnpackStored(ctx, l, img, math.MaxInt64); err != nil {
				return fmt.Errorf("%w: %w", ErrUnpack, err)
			}
		}
		return f(ctx, l)
	})
	vs.Files.EndLease(ctx, lease)
	if err != nil {
		vs.Work.Collector.Kick()
		return vs.explainUnpack(k, img, err)
	}
	vs.Work.Counter.Kick()
	return nil
}

// ErrUnpack is wrapped by the error of a stored image that could not be unpacked.
var ErrUnpack = errors.New("unpack stored image")

func (vs *Views) explainUnpack(k ViewKey, img *catalog.Image, err error) error {
	if disk.IsNoSpace(err) {
		return fmt.Errorf("unpack image %s: no space left for images under %s (%s); remove images or enlarge the filesystem: %w", img.ID, vs.Files.Root, atomicfile.FreeSpace(vs.Files.Root), errdefs.ErrResourceExhausted)
	}
	return fmt.Errorf("unpack image %s into %s: %w", img.ID, k.Snapshotter, err)
}

// Build makes the view of unpacked layers, or returns the existing one.
func (vs *Views) Build(ctx context.Context, l *disk.Layers, k ViewKey) (*View, error) {
	if err := vs.Unpacker.Locks.Lock(ctx, k.lockKey()); err != nil {
		return nil, err
	}
	defer vs.Unpacker.Locks.Unlock(k.lockKey())
	if v := vs.Get(k); v != nil {
		return v, nil
	}
	labels := snapshots.WithLabels(map[string]string{GCRoot: time.Now().UTC().Format(time.RFC3339)})
	if _, err := l.View(ctx, k.name(), k.Chain.String(), labels); err != nil && !errdefs.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create view: %w", err)
	}
	v, err := vs.read(ctx, l, k.name())
	if err != nil {
		return nil, err
	}
	vs.put(k, v)
	return v, nil
}

func (vs *Views) read(ctx context.Context, l *disk.Layers, name string) (*View, error) {
	mounts, err := l.Mounts(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read view: %w", err)
	}
	v := &View{mounts: mounts}
	if !l.Kind.Layered {
		return v, nil
	}
	var ok bool
	if v.Stack, ok = disk.ReadStack(mounts); !ok {
		return nil, fmt.Errorf("view %s has mounts of an unexpected kind: %w", name, errdefs.ErrInternal)
	}
	return v, nil
}

// DropIdle removes the views that neither an image nor a container uses.
func (vs *Views) DropIdle(ctx context.Context) {
	for _, k := range vs.idle() {
		if vs.hasImage(k.Chain) {
			continue
		}
		if err := vs.drop(ctx, k); err != nil {
			log.G(ctx).WithError(err).WithField("view", k.name()).Warn("Failed to remove unused layers")
		}
	}
}

func (vs *Views) drop(ctx context.Context, k ViewKey) error {
	if err := vs.Unpacker.Locks.Lock(ctx, k.lockKey()); err != nil {
		return err
	}
	defer vs.Unpacker.Locks.Unlock(k.lockKey())
	if !vs.forgetIdle(k) {
		return nil
	}
	if err := vs.Files.Layers[k.Snapshotter].Remove(ctx, k.name()); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// Load registers the existing views of a snapshotter. It reads the mounts of a layered snapshotter.
// Others may need long for their mounts, which are read on demand.
func (vs *Views) Load(ctx context.Context, l *disk.Layers) error {
	return l.Walk(ctx, func(ctx context.Context, info snapshots.Info) error {
		if info.Kind != snapshots.KindView || !strings.HasPrefix(info.Name, viewPrefix) {
			return nil
		}
		var v *View
		if l.Kind.Layered {
			var err error
			if v, err = vs.read(ctx, l, info.Name); err != nil {
				log.G(ctx).WithError(err).WithFields(log.Fields{"snapshotter": l.Name, "view": info.Name}).Warn("Failed to read layers; they will be read again when they are needed")
			}
		}
		vs.put(ViewKey{Snapshotter: l.Name, Chain: chainOfView(info.Name)}, v)
		return nil
	})
}

// KeyOf returns the key of a chain's layers for a snapshotter. The files of an artifact are in
// overlayfs if possible, where they need no copy.
func (vs *Views) KeyOf(snapshotter string, chain digest.Digest) ViewKey {
	if catalog.IsArtifact(chain) && vs.Files.Layers[disk.Overlayfs].Broken == nil {
		snapshotter = disk.Overlayfs
	}
	return ViewKey{Snapshotter: snapshotter, Chain: chain}
}

// Whole returns false if a layer of a view is missing on disk.
func (vs *Views) Whole(k ViewKey) bool {
	v := vs.Get(k)
	return v == nil || allThere(v.Stack.Lower)
}

func allThere(dirs []string) bool {
	return !slices.ContainsFunc(dirs, func(dir string) bool {
		_, err := os.Stat(dir)
		return err != nil
	})
}

// WithRepair calls f, which unpacks, and calls f once more if f relied on lost layers.
func (vs *Views) WithRepair(ctx context.Context, k ViewKey, img *catalog.Image, f func() error) error {
	err := f()
	if err == nil && vs.Whole(k) || err != nil && !errors.Is(err, fs.ErrNotExist) || !vs.DropLost(ctx, k, img) {
		return err
	}
	return f()
}

// DropLost removes the layers of an image that are missing on disk, with everything built on them,
// and reports whether it removed any. Proxy snapshotters check their own layers.
func (vs *Views) DropLost(ctx context.Context, k ViewKey, img *catalog.Image) bool {
	l := vs.Files.Layers[k.Snapshotter]
	if l.Proxied != nil {
		return false
	}
	chains := []digest.Digest{img.ChainID}
	if config, err := vs.Unpacker.Reader.Config(ctx, img); err == nil {
		chains = append(chains, identity.ChainIDs(config.RootFS.DiffIDs)...)
	}
	lost := map[string]bool{}
	for _, chain := range chains {
		dirs, err := l.StackOf(ctx, chain.String())
		lost[chain.String()] = errors.Is(err, fs.ErrNotExist) || err == nil && !allThere(dirs[:1])
	}
	gone, err := l.DropBuiltOn(ctx, func(info snapshots.Info) bool { return lost[info.Name] })
	for name := range gone {
		if strings.HasPrefix(name, viewPrefix) {
			vs.forget(ViewKey{Snapshotter: k.Snapshotter, Chain: chainOfView(name)})
		}
	}
	if len(gone) > 0 || err != nil {
		log.G(ctx).WithError(err).WithFields(log.Fields{"image": img.ID, "snapshotter": k.Snapshotter, "snapshots": len(gone)}).Warn("Removed lost image layers; they will be unpacked again")
		vs.Work.Collector.Kick()
	}
	return len(gone) > 0
}
