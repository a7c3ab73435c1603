// Package containerfs makes root filesystems and volumes of containers from unpacked layers, and
// measures their disk usage.
package containerfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

// Rootfs is a container's root filesystem, ready to be mounted.
type Rootfs struct {
	// Mounts make the root filesystem (mount.All).
	Mounts []mount.Mount
	// Upper is the directory of what the container wrote; empty if the snapshotter keeps that
	// elsewhere.
	Upper string
	// Snapshotter is the resolved name. The container's record keeps it, since the default may
	// change.
	Snapshotter string
}

// Use is an owner's use of the layers of a chain in a snapshotter.
type Use struct {
	// Owner is a container id. A container may use several chains.
	Owner   string
	ChainID digest.Digest
	// Snapshotter is Rootfs.Snapshotter; empty is the default.
	Snapshotter string
}

// Owner is the root user of a user namespace, by its IDs on the host, which own what the container
// writes. The image's layers belong to other IDs: package idmap must mount Rootfs.Mounts.
type Owner struct{ UID, GID int }

// Roots makes the root filesystems of containers, and removes them.
type Roots struct {
	files   *disk.Files
	views   *Views
	meter   *Meter
	work    Work
	trash   *disk.Worker
	options []string
	syncs   bool

	mu sync.Mutex
	// late are the owners of root filesystems in snapshotters that did not answer during Retain.
	late map[string]map[string]bool
}

// NewRoots returns the Roots of a store. Options are added to the mounts; writable layers are
// volatile unless sync is set.
func NewRoots(v *Views, m *Meter, options []string, sync bool) *Roots {
	return &Roots{files: v.Files, views: v, meter: m, work: v.Work, trash: disk.NewWorker(), options: options, syncs: sync, late: map[string]map[string]bool{}}
}

// CanMap returns an error if root filesystems of a snapshotter (empty: the default) cannot be made
// for user namespaces.
func (m *Roots) CanMap(snapshotter string) error {
	return m.layered(snapshotter, "cannot map the IDs of a user namespace")
}

func (m *Roots) layered(snapshotter, otherwise string) error {
	l, err := m.files.LayersOf(snapshotter)
	if err == nil && !l.Kind.Layered {
		err = fmt.Errorf("snapshotter %s %s; use %s: %w", l.Name, otherwise, disk.Overlayfs, errdefs.ErrFailedPrecondition)
	}
	return err
}

// PrepareRootfs makes the root filesystem of a container. It unpacks the image into the snapshotter
// (empty: the default) if necessary. A second call with the same id returns the same. It writes to
// no database if the snapshotter is layered and the image is unpacked. Without an owner the root
// filesystem belongs to root.
//
// It returns errdefs.ErrInvalidArgument for an unknown snapshotter, ErrFailedPrecondition for a
// snapshotter that does not work here, and ErrNotFound if the image is gone.
func (m *Roots) PrepareRootfs(ctx context.Context, containerID string, img *catalog.Image, snapshotter string, owner *Owner) (*Rootfs, error) {
	ctx = disk.InNamespace(ctx)
	if err := img.Runnable(); err != nil {
		return nil, err
	}
	l, err := m.files.LayersFor(containerID, snapshotter)
	if err != nil {
		return nil, err
	}
	k := ViewKey{Snapshotter: l.Name, Chain: img.RootChain()}
	if !l.Kind.Layered {
		return m.prepareSnapshot(ctx, k, containerID, img, owner)
	}
	v, undo, err := m.views.Hold(ctx, containerID, k, img)
	if err != nil {
		return nil, err
	}
	dir := m.files.RootfsPath(l.Name, containerID)
	if err := makeWritable(dir, cmp.Or(owner, &Owner{})); err != nil {
		undo()
		return nil, explainWritable(containerID, m.files.Writable, err)
	}
	options := slices.Clone(m.options)
	if !m.syncs {
		volatile, _ := m.files.Proof.Get(m.files.Root, m.files.Writable) // LayersFor has checked the error
		options = append(options, volatile...)
	}
	upper := filepath.Join(dir, "fs")
	return &Rootfs{Mounts: v.Stack.Mounts(upper, filepath.Join(dir, "work"), options...), Upper: upper, Snapshotter: l.Name}, nil
}

// PrepareVolume returns the read-only mounts of an image, for a CRI image
// volume. The image's layers stay until RemoveRootfs of the same container.
func (m *Roots) PrepareVolume(ctx context.Context, containerID string, img *catalog.Image, snapshotter string) ([]mount.Mount, error) {
	ctx = disk.InNamespace(ctx)
	if err := img.Usable(); err != nil {
		return nil, err
	}
	l, err := m.files.LayersFor(containerID, snapshotter)
	if err != nil {
		return nil, err
	}
	k := m.views.KeyOf(l.Name, img.ChainID)
	l, err = m.files.LayersOf(k.Snapshotter)
	if err != nil {
		return nil, err
	}
	v, _, err := m.views.Hold(ctx, containerID, k, img)
	if err != nil {
		return nil, err
	}
	if l.Kind.Layered {
		return v.Stack.Readonly(m.files.Path(disk.EmptyDir)), nil
	}
	return v.mounts, nil
}

// MakeVolumes makes the directory for a container's own volumes, outside its root filesystem. It is
// removed with the root filesystem, and its content counts as written by the container.
func (m *Roots) MakeVolumes(containerID, snapshotter string) (string, error) {
	l, err := m.files.LayersFor(containerID, snapshotter)
	if err != nil {
		return "", err
	}
	dir := m.files.VolumesPath(l.Name, containerID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", explainWritable(containerID, m.files.Writable, err)
	}
	return dir, nil
}

// CheckWritten returns an error if WrittenOf does not work with a snapshotter (empty: the default).
func (m *Roots) CheckWritten(snapshotter string) error {
	return m.layered(snapshotter, "cannot list what a container wrote")
}

// WrittenOf returns the directory of what a container wrote, as overlayfs keeps it, and the
// read-only mounts of the image's layers below. It writes nothing: the root filesystem may be in
// use. It returns errdefs.ErrFailedPrecondition if CheckWritten fails, and ErrNotFound without a
// root filesystem.
func (m *Roots) WrittenOf(u Use) (upper string, layers []mount.Mount, err error) {
	upper, below, err := m.written(u)
	if err != nil {
		return "", nil, err
	}
	return upper, below.Readonly(m.files.Path(disk.EmptyDir)), nil
}

// SeenOf returns read-only mounts of a container's root filesystem, including what it has written
// so far. Its errors are those of WrittenOf.
func (m *Roots) SeenOf(u Use) ([]mount.Mount, error) {
	upper, below, err := m.written(u)
	if err != nil {
		return nil, err
	}
	seen := disk.Stack{Lower: append([]string{upper}, below.Lower...), Options: below.Options}
	return seen.Readonly(m.files.Path(disk.EmptyDir)), nil
}

// written returns the writable layer of a container and the layers below it.
func (m *Roots) written(u Use) (upper string, below disk.Stack, err error) {
	l, err := m.files.LayersFor(u.Owner, u.Snapshotter)
	if err != nil {
		return "", disk.Stack{}, err
	}
	if err := m.CheckWritten(l.Name); err != nil {
		return "", disk.Stack{}, err
	}
	upper = filepath.Join(m.files.RootfsPath(l.Name, u.Owner), "fs")
	v := m.views.Get(ViewKey{Snapshotter: l.Name, Chain: u.ChainID})
	if _, err := os.Stat(upper); err != nil || v == nil {
		return "", disk.Stack{}, fmt.Errorf("container %s has no root filesystem: %w", u.Owner, errdefs.ErrNotFound)
	}
	return upper, v.Stack, nil
}

// RemoveRootfs removes what PrepareRootfs, PrepareVolume and MakeVolumes made for a container. The
// caller has unmounted them. Files are deleted in the background. A missing part is not an error.
func (m *Roots) RemoveRootfs(ctx context.Context, containerID, snapshotter string) error {
	ctx = disk.InNamespace(ctx)
	l, err := m.files.LayersFor(containerID, snapshotter)
	if err != nil {
		// Directories can be removed where overlayfs cannot be mounted, and the metadata of a proxy
		// snapshotter can be removed while the snapshotter does not answer.
		l = m.files.Layers[cmp.Or(snapshotter, m.files.Snapshotter)]
		if l == nil || l.Proxied == nil && (!errdefs.IsFailedPrecondition(err) || !l.Kind.Layered) {
			return err
		}
	}
	moved, err := m.moveToTrash(l.Name, containerID)
	if err != nil {
		return fmt.Errorf("remove root filesystem of %s: %w", containerID, err)
	}
	if moved {
		m.trash.Kick()
	}
	if err := m.removeSnapshot(ctx, l, disk.RootfsPrefix+containerID); err != nil {
		return fmt.Errorf("remove root filesystem of %s: %w", containerID, err)
	}
	m.meter.forget(l.Name, containerID)
	for _, k := range m.views.Release(containerID) {
		if !m.views.hasImage(k.Chain) {
			m.work.Collector.Kick()
		}
	}
	return nil
}

// Retain is called once after Open, with what containers use. It removes root filesystems without a
// container in inUse and, in the background, unreferenced layers. No unused view is removed before
// this call.
func (m *Roots) Retain(ctx context.Context, inUse []Use) error {
	ctx = disk.InNamespace(ctx)
	owners := map[string]bool{}
	for _, u := range inUse {
		owners[u.Owner] = true
	}
	m.views.retain(inUse)
	var errs []error
	for _, l := range m.files.Layers {
		if l.Broken != nil || l.Proxied != nil && m.dropsLate(l, owners) {
			continue
		}
		errs = append(errs, l.TolerateProxied(ctx, m.dropOrphans(ctx, l, owners)))
	}
	m.trash.Kick()
	m.work.Collector.Kick()
	return errors.Join(errs...)
}

// dropsLate returns true if a proxy snapshotter does not answer. DropOrphansLate uses owners later.
func (m *Roots) dropsLate(l *disk.Layers, owners map[string]bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !l.Proxied.FellBehind() {
		return false
	}
	m.late[l.Name] = owners
	return true
}

// DropOrphansLate is dropOrphans for a snapshotter that did not answer during Retain. It runs once:
// the owners do not include later containers.
func (m *Roots) DropOrphansLate(ctx context.Context, l *disk.Layers) error {
	m.mu.Lock()
	owners, ok := m.late[l.Name]
	delete(m.late, l.Name)
	m.mu.Unlock()
	if !ok {
		return nil
	}
	return m.dropOrphans(ctx, l, owners)
}

// dropOrphans removes the root filesystems of unknown containers.
func (m *Roots) dropOrphans(ctx context.Context, l *disk.Layers, owners map[string]bool) error {
	entries, err := os.ReadDir(m.files.WritablePath(disk.RootfsDir, l.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // missing if Open had no space for it
		return err
	}
	var errs []error
	for _, e := range entries {
		if !owners[e.Name()] {
			log.G(ctx).WithFields(log.Fields{"container": e.Name(), "snapshotter": l.Name}).Info("Removing root filesystem that belongs to no container")
			_, err := m.moveToTrash(l.Name, e.Name())
			errs = append(errs, err)
		}
	}
	var orphans []string
	errs = append(errs, l.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if id, ok := strings.CutPrefix(info.Name, disk.RootfsPrefix); ok && !owners[id] {
			orphans = append(orphans, info.Name)
		}
		return nil
	}))
	for _, snapshot := range orphans {
		errs = append(errs, m.removeSnapshot(ctx, l, snapshot))
	}
	return errors.Join(errs...)
}

// makeWritable makes the directories of a writable layer. Existing directories stay; after a
// failure new ones are removed.
func makeWritable(dir string, o *Owner) (err error) {
	// Open makes the parent too, unless the disk is full.
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	switch made := os.Mkdir(dir, 0o700); {
	case made == nil:
		defer func() {
			if err != nil {
				err = errors.Join(err, os.RemoveAll(dir))
			}
		}()
	case errors.Is(made, fs.ErrExist):
		// Because of this mark the kernel refuses to mount a volatile layer again: a crash of the
		// machine may have damaged the layer. No container survives such a crash.
		_ = os.RemoveAll(filepath.Join(dir, "work", "work", "incompat", "volatile"))
	default:
		return made
	}
	upper := filepath.Join(dir, "fs")
	for path, mode := range map[string]os.FileMode{upper: 0o755, filepath.Join(dir, "work"): 0o711} {
		if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// The upper directory is "/" of the container's processes: the umask must not narrow its mode.
	return errors.Join(os.Chmod(upper, 0o755), os.Chown(upper, o.UID, o.GID))
}

func explainWritable(containerID, root string, err error) error {
	if disk.IsNoSpace(err) {
		return fmt.Errorf("create root filesystem of %s: no space left under %s (%s); remove images or enlarge the filesystem: %w", containerID, root, atomicfile.FreeSpace(root), errdefs.ErrResourceExhausted)
	}
	return fmt.Errorf("create root filesystem of %s: %w", containerID, err)
}

// prepareSnapshot makes a root filesystem that is a snapshot in the snapshotter.
func (m *Roots) prepareSnapshot(ctx context.Context, k ViewKey, containerID string, img *catalog.Image, owner *Owner) (*Rootfs, error) {
	if owner != nil {
		return nil, m.CanMap(k.Snapshotter)
	}
	key := disk.RootfsPrefix + containerID
	var mounts []mount.Mount
	err := m.views.withUnpacked(ctx, k, img, func(ctx context.Context, l *disk.Layers) (err error) {
		labels := snapshots.WithLabels(map[string]string{GCRoot: time.Now().UTC().Format(time.RFC3339)})
		if mounts, err = l.Prepare(ctx, key, k.Chain.String(), labels); errdefs.IsAlreadyExists(err) {
			mounts, err = l.Mounts(ctx, key)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Rootfs{Mounts: mounts, Snapshotter: k.Snapshotter}, nil
}

func (m *Roots) removeSnapshot(ctx context.Context, l *disk.Layers, key string) error {
	if l.Kind.Layered {
		return nil
	}
	err := l.Remove(ctx, key)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err == nil {
		m.work.Collector.Kick()
	}
	return err
}

// trashed numbers the entries of the trash, so that their names are unique.
var trashed atomic.Uint64

// moveToTrash moves a writable layer to the trash, and returns false if there was none.
func (m *Roots) moveToTrash(snapshotter, containerID string) (bool, error) {
	name := fmt.Sprintf("%s-%d-%s", containerID, os.Getpid(), strconv.FormatUint(trashed.Add(1), 36))
	err := os.Rename(m.files.RootfsPath(snapshotter, containerID), m.files.WritablePath(disk.TrashDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Run deletes the content of the trash, now and after each addition, until ctx ends.
func (m *Roots) Run(ctx context.Context) {
	m.trash.Kick()
	m.trash.Run(ctx, m.emptyTrash)
}

func (m *Roots) emptyTrash(ctx context.Context) {
	entries, err := os.ReadDir(m.files.WritablePath(disk.TrashDir))
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to list discarded writable layers")
		return
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return
		}
		if err := os.RemoveAll(m.files.WritablePath(disk.TrashDir, e.Name())); err != nil {
			log.G(ctx).WithError(err).WithField("entry", e.Name()).Warn("Failed to delete discarded writable layer")
		}
	}
}
