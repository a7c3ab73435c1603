package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
)

// Below the store's root.
const (
	// snapshotsDir has a directory for each snapshotter.
	snapshotsDir = "snapshots"
	// rootfsDir has <snapshotter>/<container id>/{fs,work,volumes} for each container.
	rootfsDir = "rootfs"
	// trashDir has what was in rootfsDir, until it is deleted.
	trashDir = "trash"
	// emptyDir is a directory without content.
	emptyDir = "empty"
)

// rootfsPrefix begins the snapshot name of a container's root filesystem, for
// snapshotters that need a snapshot for it; the container id follows.
const rootfsPrefix = "berth-rootfs-"

// Rootfs is a container's root filesystem, ready to be mounted.
type Rootfs struct {
	// Mounts make the root filesystem (mount.All).
	Mounts []mount.Mount
	// Upper is the directory of what the container wrote; empty when the
	// snapshotter keeps that elsewhere.
	Upper string
	// Snapshotter is the name that was meant, also when the default was asked
	// for: keep this one in the container's record.
	Snapshotter string
}

// Use says that an owner needs the layers of a chain in a snapshotter.
type Use struct {
	// Owner is a container id. It may use several chains.
	Owner string
	// ChainID is Image.ChainID.
	ChainID digest.Digest
	// Snapshotter is Rootfs.Snapshotter; empty is the default.
	Snapshotter string
}

// RootfsOption changes a root filesystem from the usual.
type RootfsOption func(*rootfsOptions)

type rootfsOptions struct {
	uid, gid int
	mapped   bool
}

// OwnedBy makes a root filesystem for a user namespace whose root has these ids
// on the host: what the container writes belongs to the ids that it has on the
// host. The image's layers do not: Rootfs.Mounts must be mounted by package idmap.
func OwnedBy(uid, gid int) RootfsOption {
	return func(o *rootfsOptions) { o.uid, o.gid, o.mapped = uid, gid, true }
}

// CanMap tells whether root filesystems of a snapshotter (empty: the default) can
// be made for user namespaces; if not, the error says why.
func (s *Store) CanMap(snapshotter string) error {
	l, name, err := s.layersOf(snapshotter)
	if err == nil && !l.kind.layered {
		err = cannotMap(name)
	}
	return err
}

func cannotMap(snapshotter string) error {
	return fmt.Errorf("snapshotter %s cannot map the IDs of a user namespace; use %s: %w", snapshotter, Overlayfs, errdefs.ErrFailedPrecondition)
}

// PrepareRootfs makes the root filesystem of a container. It unpacks the image
// into the snapshotter (empty: the default) if that was not done yet. A second
// call with the same id answers the same. Nothing is written to a database when
// the snapshotter is an overlay and the image is unpacked.
//
// errdefs.ErrInvalidArgument for an unknown snapshotter, ErrFailedPrecondition
// for one that does not work here, ErrNotFound when the image is gone.
func (s *Store) PrepareRootfs(ctx context.Context, containerID string, img *Image, snapshotter string, opts ...RootfsOption) (*Rootfs, error) {
	ctx = s.context(ctx)
	if err := img.usable(); err != nil {
		return nil, err
	}
	l, name, err := s.layersFor(containerID, snapshotter)
	if err != nil {
		return nil, err
	}
	var o rootfsOptions
	for _, opt := range opts {
		opt(&o)
	}
	k := viewKey{snapshotter: name, chain: img.ChainID}
	if !l.kind.layered {
		return s.prepareSnapshot(ctx, k, containerID, img, o)
	}
	v, undo, err := s.hold(ctx, containerID, k, img)
	if err != nil {
		return nil, err
	}
	dir := s.rootfsPath(name, containerID)
	if err := makeWritable(dir, o); err != nil {
		undo()
		return nil, explainWritable(containerID, s.cfg.Root, err)
	}
	return s.stacked(l, v, name, dir), nil
}

// PrepareVolume returns the read-only mounts of an image, for a CRI image
// volume. The image's layers stay until RemoveRootfs of the same container.
func (s *Store) PrepareVolume(ctx context.Context, containerID string, img *Image, snapshotter string) ([]mount.Mount, error) {
	ctx = s.context(ctx)
	if err := img.usable(); err != nil {
		return nil, err
	}
	l, name, err := s.layersFor(containerID, snapshotter)
	if err != nil {
		return nil, err
	}
	v, _, err := s.hold(ctx, containerID, viewKey{snapshotter: name, chain: img.ChainID}, img)
	if err != nil {
		return nil, err
	}
	if l.kind.layered {
		return v.stack.readonly(s.path(emptyDir)), nil
	}
	return v.mounts, nil
}

// RootfsOf returns the root filesystem that PrepareRootfs made, so that it can be mounted again, also when the image is gone since.
// errdefs.ErrNotFound when there is none.
func (s *Store) RootfsOf(ctx context.Context, u Use) (*Rootfs, error) {
	ctx = s.context(ctx)
	l, name, err := s.layersFor(u.Owner, u.Snapshotter)
	if err != nil {
		return nil, err
	}
	if !l.kind.layered {
		mounts, err := l.Mounts(ctx, rootfsPrefix+u.Owner)
		if err != nil {
			return nil, fmt.Errorf("root filesystem of container %s: %w", u.Owner, err)
		}
		return &Rootfs{Mounts: mounts, Snapshotter: name}, nil
	}
	dir := s.rootfsPath(name, u.Owner)
	v := s.views.get(viewKey{snapshotter: name, chain: u.ChainID})
	if _, err := os.Stat(filepath.Join(dir, "work")); err != nil || v == nil {
		return nil, fmt.Errorf("container %s has no root filesystem: %w", u.Owner, errdefs.ErrNotFound)
	}
	forgetVolatile(dir)
	return s.stacked(l, v, name, dir), nil
}

// MakeVolumes makes the directory for the volumes that a container has of its own, and
// that its root filesystem does not hold. It goes with the root filesystem, and what is
// in it counts as what the container wrote.
func (s *Store) MakeVolumes(containerID, snapshotter string) (string, error) {
	_, name, err := s.layersFor(containerID, snapshotter)
	if err != nil {
		return "", err
	}
	dir := s.volumesPath(name, containerID)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", explainWritable(containerID, s.cfg.Root, err)
	}
	return dir, nil
}

// TellsWritten tells whether WrittenOf works with a snapshotter (empty: the
// default); if not, the error says why.
func (s *Store) TellsWritten(snapshotter string) error {
	l, name, err := s.layersOf(snapshotter)
	if err == nil && !l.kind.layered {
		err = fmt.Errorf("snapshotter %s cannot list what a container wrote; use %s: %w", name, Overlayfs, errdefs.ErrFailedPrecondition)
	}
	return err
}

// WrittenOf returns the directory of what a container wrote, as overlayfs keeps
// it, and the read-only mounts of the image's layers below. Nothing is written:
// the root filesystem may be in use. errdefs.ErrFailedPrecondition when the
// snapshotter keeps it in another form, ErrNotFound when there is none.
func (s *Store) WrittenOf(u Use) (upper string, layers []mount.Mount, err error) {
	_, name, err := s.layersFor(u.Owner, u.Snapshotter)
	if err != nil {
		return "", nil, err
	}
	if err := s.TellsWritten(name); err != nil {
		return "", nil, err
	}
	upper = filepath.Join(s.rootfsPath(name, u.Owner), "fs")
	v := s.views.get(viewKey{snapshotter: name, chain: u.ChainID})
	if _, err := os.Stat(upper); err != nil || v == nil {
		return "", nil, fmt.Errorf("container %s has no root filesystem: %w", u.Owner, errdefs.ErrNotFound)
	}
	return upper, v.stack.readonly(s.path(emptyDir)), nil
}

// RemoveRootfs removes what PrepareRootfs, PrepareVolume and MakeVolumes made for a
// container, which must be unmounted. The files go in the background. Missing is
// no error.
func (s *Store) RemoveRootfs(ctx context.Context, containerID, snapshotter string) error {
	ctx = s.context(ctx)
	l, name, err := s.layersFor(containerID, snapshotter)
	if err != nil {
		if snapshotter == "" {
			snapshotter = s.cfg.DefaultSnapshotter
		}
		// What is no more than directories can go also where none can be mounted.
		broken, ok := s.layers[snapshotter]
		if !errdefs.IsFailedPrecondition(err) || !ok || !broken.kind.layered {
			return err
		}
		l, name = broken, snapshotter
	}
	thrown, err := s.throwAway(name, containerID)
	if err != nil {
		return fmt.Errorf("remove root filesystem of %s: %w", containerID, err)
	}
	if thrown {
		s.sweeper.kick()
	}
	if err := s.removeSnapshot(ctx, l, rootfsPrefix+containerID); err != nil {
		return fmt.Errorf("remove root filesystem of %s: %w", containerID, err)
	}
	s.measurer.forget(name, containerID)
	for _, k := range s.views.release(containerID) {
		if !s.index.hasChain(k.chain) {
			s.collector.kick()
		}
	}
	return nil
}

// Retain tells the store, once after Open, what containers use. Root filesystems
// that no container in inUse owns are removed, as are, in the background, layers
// that nothing needs. Until it is called no layer is given up.
func (s *Store) Retain(ctx context.Context, inUse []Use) error {
	ctx = s.context(ctx)
	owners := map[string]bool{}
	for _, u := range inUse {
		owners[u.Owner] = true
	}
	s.views.retain(inUse, func(u Use) viewKey {
		name := u.Snapshotter
		if name == "" {
			name = s.cfg.DefaultSnapshotter
		}
		return viewKey{snapshotter: name, chain: u.ChainID}
	})
	var errs []error
	for name, l := range s.layers {
		if l.broken == nil {
			errs = append(errs, s.dropOrphans(ctx, l, name, owners))
		}
	}
	s.sweeper.kick()
	s.collector.kick()
	return errors.Join(errs...)
}

// dropOrphans removes the root filesystems of unknown containers.
func (s *Store) dropOrphans(ctx context.Context, l *layers, name string, owners map[string]bool) error {
	entries, err := os.ReadDir(s.path(rootfsDir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // no room was left to make it
		return err
	}
	var errs []error
	for _, e := range entries {
		if !owners[e.Name()] {
			log.G(ctx).WithFields(log.Fields{"container": e.Name(), "snapshotter": name}).Info("Removing root filesystem that belongs to no container")
			_, err := s.throwAway(name, e.Name())
			errs = append(errs, err)
		}
	}
	var orphans []string
	errs = append(errs, l.Walk(ctx, func(_ context.Context, info snapshots.Info) error {
		if id, ok := strings.CutPrefix(info.Name, rootfsPrefix); ok && !owners[id] {
			orphans = append(orphans, info.Name)
		}
		return nil
	}))
	for _, snapshot := range orphans {
		errs = append(errs, s.removeSnapshot(ctx, l, snapshot))
	}
	return errors.Join(errs...)
}

// layersFor checks what names a root filesystem.
func (s *Store) layersFor(containerID, snapshotter string) (*layers, string, error) {
	if containerID == "" || containerID != filepath.Base(containerID) || strings.HasPrefix(containerID, ".") {
		return nil, "", fmt.Errorf("container id %.100q cannot name a root filesystem: %w", containerID, errdefs.ErrInvalidArgument)
	}
	return s.layersOf(snapshotter)
}

func (s *Store) rootfsPath(snapshotter, containerID string) string {
	return s.path(rootfsDir, snapshotter, containerID)
}

func (s *Store) volumesPath(snapshotter, containerID string) string {
	return filepath.Join(s.rootfsPath(snapshotter, containerID), "volumes")
}

// makeWritable makes the directories of a writable layer. They may be there; if
// they were not, a failure leaves none.
func makeWritable(dir string, o rootfsOptions) (err error) {
	// Open makes the parent too, unless it finds no room.
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
		forgetVolatile(dir)
	default:
		return made
	}
	upper := filepath.Join(dir, "fs")
	for path, mode := range map[string]os.FileMode{upper: 0o755, filepath.Join(dir, "work"): 0o711} {
		if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	// The upper directory is what a process sees as "/": no umask may narrow it.
	return errors.Join(os.Chmod(upper, 0o755), os.Chown(upper, o.uid, o.gid))
}

// forgetVolatile removes the mark by which the kernel refuses to mount a volatile
// layer a second time. It means that a crash of the machine may have torn what is
// in it; but after that no container is left that could be shown it.
func forgetVolatile(dir string) {
	_ = os.RemoveAll(filepath.Join(dir, "work", "work", "incompat", "volatile"))
}

func explainWritable(containerID, root string, err error) error {
	if isNoSpace(err) {
		return fmt.Errorf("create root filesystem of %s: no space left under %s: %w", containerID, root, errdefs.ErrResourceExhausted)
	}
	return fmt.Errorf("create root filesystem of %s: %w", containerID, err)
}

func (s *Store) stacked(l *layers, v *view, name, dir string) *Rootfs {
	options := append([]string{}, s.cfg.MountOptions...)
	if !s.cfg.SyncRootfs {
		volatile, _ := l.proof.get(s.cfg.Root) // layersOf has seen the error
		options = append(options, volatile...)
	}
	upper := filepath.Join(dir, "fs")
	return &Rootfs{Mounts: v.stack.mounts(upper, filepath.Join(dir, "work"), options...), Upper: upper, Snapshotter: name}
}

// prepareSnapshot makes a root filesystem out of a snapshot of its own.
func (s *Store) prepareSnapshot(ctx context.Context, k viewKey, containerID string, img *Image, o rootfsOptions) (*Rootfs, error) {
	if o.mapped {
		return nil, cannotMap(k.snapshotter)
	}
	key := rootfsPrefix + containerID
	var mounts []mount.Mount
	err := s.withUnpacked(ctx, k, img, func(ctx context.Context, l *layers) (err error) {
		labels := snapshots.WithLabels(map[string]string{gcRoot: time.Now().UTC().Format(time.RFC3339)})
		if mounts, err = l.Prepare(ctx, key, k.chain.String(), labels); errdefs.IsAlreadyExists(err) {
			mounts, err = l.Mounts(ctx, key)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Rootfs{Mounts: mounts, Snapshotter: k.snapshotter}, nil
}

// removeSnapshot removes what prepareSnapshot made.
func (s *Store) removeSnapshot(ctx context.Context, l *layers, key string) error {
	if l.kind.layered {
		return nil
	}
	err := l.Remove(ctx, key)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err == nil {
		s.collector.kick()
	}
	return err
}

// trashed numbers what is thrown away, so that names in the trash are unique.
var trashed atomic.Uint64

// throwAway moves a writable layer out of the way; the sweeper deletes it. False
// if there was none.
func (s *Store) throwAway(snapshotter, containerID string) (bool, error) {
	name := fmt.Sprintf("%s-%d-%s", containerID, os.Getpid(), strconv.FormatUint(trashed.Add(1), 36))
	err := os.Rename(s.rootfsPath(snapshotter, containerID), s.path(trashDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
