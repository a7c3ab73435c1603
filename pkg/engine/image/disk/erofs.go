package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/erofs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/image/layerproc"
	"github.com/berth-cri/berth/pkg/printable"
)

// erofsLayers mounts each layer of containerd's erofs snapshotter once. A mounted layer is a
// directory, like a layer of overlayfs.
type erofsLayers struct {
	snapshots.Snapshotter
	// mounts is the directory of the layers' mount points, which mountpointOf names.
	mounts string

	mu      sync.Mutex
	mounted map[string]bool // by the layer's file; guarded by mu
}

func openErofs(root string) (snapshots.Snapshotter, error) {
	if _, err := exec.LookPath("mkfs.erofs"); err != nil {
		return nil, fmt.Errorf("mkfs.erofs is not installed; install erofs-utils: %w", err)
	}
	if !erofs.FindErofs() {
		// A mount attempt loads the kernel module, if it exists.
		_ = unix.Mount("none", os.TempDir(), "erofs", unix.MS_RDONLY, "")
	}
	mounts := filepath.Join(root, "mounts")
	if err := unmountLayers(mounts); err != nil {
		return nil, err
	}
	// With fs-verity, which some filesystems lack, the kernel checks each read of a layer.
	s, err := erofs.NewSnapshotter(root, erofs.WithFsverity())
	if err != nil {
		s, err = erofs.NewSnapshotter(root)
	}
	if err != nil {
		return nil, err
	}
	return &erofsLayers{Snapshotter: s, mounts: mounts, mounted: map[string]bool{}}, nil
}

// unmountLayers unmounts all layers. Those of an earlier daemon may belong to removed snapshots.
// Containers keep their own mounts.
func unmountLayers(mounts string) error {
	dirs, err := os.ReadDir(mounts)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, dir := range dirs {
		if err := unmountLayer(filepath.Join(mounts, dir.Name())); err != nil {
			return err
		}
	}
	return nil
}

func unmountLayer(dir string) error {
	if err := mount.UnmountAll(dir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount layer: %w", err)
	}
	return os.Remove(dir)
}

// sealErofs creates the file of an unpacked layer at the path that Commit expects, with the options
// that the snapshotter uses, and empties the directory.
func sealErofs(ctx context.Context, dir string) error {
	file := filepath.Join(filepath.Dir(dir), "layer.erofs")
	unfinished := file + ".new"
	out, err := exec.CommandContext(ctx, "mkfs.erofs", "--quiet", "-Enoinline_data", unfinished, dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mkfs.erofs: %s: %w", printable.Line(string(out)), err)
	}
	if err := os.Rename(unfinished, file); err != nil {
		return err
	}
	return layerproc.Empty(dir)
}

func (e *erofsLayers) View(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return e.directories(e.Snapshotter.View(ctx, key, parent, opts...))
}

func (e *erofsLayers) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	return e.directories(e.Snapshotter.Prepare(ctx, key, parent, opts...))
}

func (e *erofsLayers) Mounts(ctx context.Context, key string) ([]mount.Mount, error) {
	return e.directories(e.Snapshotter.Mounts(ctx, key))
}

// Remove implements snapshots.Snapshotter. It unmounts the removed layers, which frees their space.
func (e *erofsLayers) Remove(ctx context.Context, key string) error {
	if err := e.Snapshotter.Remove(ctx, key); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for file := range e.mounted {
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := unmountLayer(e.mountpointOf(file)); err != nil {
			log.G(ctx).WithError(err).Warn("Failed to unmount removed layer")
		}
		delete(e.mounted, file)
	}
	return nil
}

func (e *erofsLayers) mountpointOf(file string) string {
	return filepath.Join(e.mounts, filepath.Base(filepath.Dir(file)))
}

func (e *erofsLayers) directories(mounts []mount.Mount, err error) ([]mount.Mount, error) {
	if err != nil {
		return nil, err
	}
	var lower, options []string
	for _, m := range mounts {
		switch {
		case m.Type == "erofs":
			dir, err := e.mountLayer(m)
			if err != nil {
				return nil, err
			}
			lower = append(lower, dir)
		case strings.HasSuffix(m.Type, "/overlay"):
			for _, o := range m.Options {
				// Options with a template refer to other mounts; lowerdir below replaces them.
				if !strings.Contains(o, "{{") {
					options = append(options, o)
				}
			}
		}
	}
	switch {
	case len(lower) == 0: // only a writable directory
		return mounts, nil
	case len(lower) == 1 && len(options) == 0:
		return []mount.Mount{{Type: "bind", Source: lower[0], Options: []string{"ro", "rbind"}}}, nil
	}
	options = append(options, "lowerdir="+strings.Join(lower, ":"))
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: options}}, nil
}

// mountLayer mounts a layer if necessary, and returns the directory.
func (e *erofsLayers) mountLayer(m mount.Mount) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	dir := e.mountpointOf(m.Source)
	if e.mounted[m.Source] {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := mountErofs(m, dir, unix.Mount); err != nil {
		return "", errors.Join(fmt.Errorf("mount layer %s: %w", m.Source, err), os.Remove(dir))
	}
	e.mounted[m.Source] = true
	return dir, nil
}

// mountErofs mounts a file directly, or through a loop device if the kernel cannot mount files
// (before Linux 6.12).
func mountErofs(m mount.Mount, dir string, direct func(source, target, fstype string, flags uintptr, data string) error) error {
	err := direct(m.Source, dir, "erofs", unix.MS_RDONLY, "")
	if errors.Is(err, unix.ENOTBLK) {
		err = m.Mount(dir)
	}
	return err
}

// Close implements snapshots.Snapshotter. Containers keep their mounted layers.
func (e *erofsLayers) Close() error {
	return errors.Join(unmountLayers(e.mounts), e.Snapshotter.Close())
}
