// Package rootfs creates, mounts and removes the files of containers: root filesystems, image
// volumes, volumes that images define, and mapped mounts.
package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/idmap"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/probe"
)

// Mounts manages the root filesystems of containers, their image volumes and their mapped mounts.
type Mounts struct {
	pods   *pod.Registry
	images *image.Store
	// Residue retries the removal of busy files.
	Residue *residue
}

// New returns the Mounts of pods, with images of a store.
func New(pods *pod.Registry, images *image.Store) *Mounts {
	return &Mounts{pods: pods, images: images, Residue: newResidue(pods.Background)}
}

// PrepareRootfs creates the root filesystem and mounts it in the bundle. A foreign shim mounts it
// itself from the returned mounts, so that a VM may use them directly.
func (m *Mounts) PrepareRootfs(ctx context.Context, c *pod.Container, img *catalog.Image) ([]mount.Mount, error) {
	rootfs := filepath.Join(m.pods.ContainerDir(c.ID()), "rootfs")
	if err := c.Sandbox.Spec().Plan.MakePodDir(m.pods.ContainerDir(c.ID())); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	if err := os.MkdirAll(rootfs, 0o711); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	plan := &c.Sandbox.Spec().Plan
	var owner *containerfs.Owner
	if plan.User != nil {
		uid, gid := plan.Root()
		owner = &containerfs.Owner{UID: int(uid), GID: int(gid)}
	}
	fs, err := m.images.PrepareRootfs(ctx, c.ID(), img, c.Spec().Snapshotter, owner)
	if err != nil {
		return nil, fmt.Errorf("root filesystem: %w", err)
	}
	mounts := fs.Mounts
	switch {
	case plan.User != nil:
		// berth mounts it, since a shim would need a process to get the mapping.
		mounts, err = nil, idmap.Mount(c.Sandbox.Status().Namespaces.User, fs.Mounts, rootfs, m.pods.ScratchDir(c.ID()))
	case !c.Sandbox.MountsRootfs():
		err = mount.All(fs.Mounts, rootfs)
	}
	if err != nil {
		return nil, fmt.Errorf("mount root filesystem: %w", err)
	}
	return mounts, nil
}

// WithRootfs calls f with the directory of the root filesystem. If the shim mounts it later, mounts
// are mounted there while f runs; after a crash, clean-up unmounts that directory.
func (m *Mounts) WithRootfs(c *pod.Container, mounts []mount.Mount, f func(dir string) error) (err error) {
	rootfs := filepath.Join(m.pods.ContainerDir(c.ID()), "rootfs")
	if len(mounts) == 0 || !c.Sandbox.MountsRootfs() {
		return f(rootfs)
	}
	defer func() {
		if uerr := mount.UnmountAll(rootfs, unix.MNT_DETACH); uerr != nil {
			err = errors.Join(err, fmt.Errorf("unmount root filesystem: %w", uerr))
		}
	}()
	if err := mount.All(mounts, rootfs); err != nil {
		return fmt.Errorf("mount root filesystem: %w", err)
	}
	return f(rootfs)
}

// ReadOnly returns read-only mounts that do not mark their layers as used: the kernel mounts a
// volatile overlay only once.
func ReadOnly(mounts []mount.Mount) []mount.Mount {
	mounts = slices.Clone(mount.RemoveVolatileOption(mounts))
	for i := range mounts {
		options := append(slices.Clone(mounts[i].Options), "ro")
		mounts[i].Options = slices.DeleteFunc(options, func(o string) bool { return o == "rw" })
	}
	return mounts
}

// UnmountParts unmounts all mounts of a container.
func (m *Mounts) UnmountParts(id string) error {
	if err := mountpoint.Unmount(filepath.Join(m.pods.ContainerDir(id), "rootfs")); err != nil {
		return fmt.Errorf("unmount root filesystem: %w", err)
	}
	if err := idmap.Forget(m.pods.ScratchDir(id)); err != nil && !errors.Is(err, unix.EBUSY) { // a busy mount is removed with its directory
		return fmt.Errorf("unmount layers: %w", err)
	}
	for _, dir := range []string{m.pods.VolumesDir(id), m.pods.MappedDir(id)} {
		if err := unmountBelow(dir); err != nil {
			return fmt.Errorf("unmount volumes: %w", err)
		}
	}
	return nil
}

// Limits of waiting for writers in a directory that is being removed.
const (
	stragglersTimeout = 2 * time.Second
	stragglersPause   = 5 * time.Millisecond
)

// removeDir removes a directory of a runtime or a shim, which may still write there: containerd's
// shim runs `runc kill` beside its response to Delete, and runc creates its log file again.
func removeDir(path string) error {
	for begin := time.Now(); ; time.Sleep(stragglersPause) {
		err := mountpoint.RemoveAll(path)
		if !errors.Is(err, unix.ENOTEMPTY) || time.Since(begin) > stragglersTimeout {
			return err
		}
	}
}

// MapFor creates the id-mapped mounts that the runtime does not support, and puts them into the
// spec as bind mounts. They are unmounted with the root filesystem.
func (m *Mounts) MapFor(c *pod.Container, spec *specs.Spec, runtime *probe.Runtime) error {
	which, err := ocispec.MountsToMap(spec, runtime)
	if err != nil {
		return err
	}
	for _, i := range which {
		bind := &spec.Mounts[i]
		target := filepath.Join(m.pods.MappedDir(c.ID()), strconv.Itoa(i))
		if err := makeLike(bind.Source, target); err != nil {
			return fmt.Errorf("mount %s: %w", bind.Destination, err)
		}
		if err := idmap.Bind(c.Sandbox.Status().Namespaces.User, bind.Source, target); err != nil {
			return fmt.Errorf("mount %s: %w", bind.Destination, err)
		}
		bind.Source, bind.UIDMappings, bind.GIDMappings = target, nil, nil
	}
	return nil
}

func makeLike(source, target string) error {
	st, err := os.Stat(source)
	if err != nil {
		return err
	}
	if st.IsDir() {
		return os.MkdirAll(target, 0o711)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o711); err != nil {
		return err
	}
	return os.WriteFile(target, nil, 0o600)
}

// unmountBelow finds the mounts by the entries of dir: a record of them may be lost.
func unmountBelow(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if err := mountpoint.Unmount(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
