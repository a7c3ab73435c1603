package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/copytree"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// MakeVolumes creates the volumes that the image of c defines, with the image's files in them.
// rootfs is where the container's root filesystem can be read. Volumes are removed with the root
// filesystem; those covered by a mount of the container are not created.
func (m *Mounts) MakeVolumes(ctx context.Context, c *pod.Container, rootfs string, targets *ocispec.Targets) ([]ocispec.DefinedVolume, error) {
	var made []ocispec.DefinedVolume
	seen := map[string]bool{}
	for _, defined := range c.Spec().DefinedVolumes {
		at, err := targets.Resolve(defined)
		if err != nil {
			return nil, fmt.Errorf("volume of the image: %w", err)
		}
		if at == "/" {
			return nil, fmt.Errorf("volume of the image: %.200q leads to its root; set engine.ignore_image_defined_volumes, or use another image: %w", defined, errdefs.ErrInvalidArgument)
		}
		if seen[at] || ocispec.OfKernel(at) || targets.Cover(at) {
			continue
		}
		seen[at] = true
		source, err := m.makeVolume(ctx, c, len(made), filepath.Join(rootfs, at))
		if err != nil {
			return nil, fmt.Errorf("volume of the image at %.200q: %w", defined, err)
		}
		made = append(made, ocispec.DefinedVolume{Path: at, Source: source})
	}
	return made, nil
}

// makeVolume creates the volume of that number with the files of the directory content.
func (m *Mounts) makeVolume(ctx context.Context, c *pod.Container, number int, content string) (string, error) {
	parent, err := m.images.MakeVolumes(c.ID(), c.Spec().Snapshotter)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(parent, strconv.Itoa(number))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	switch info, err := os.Lstat(content); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		// A runtime would create a missing path with this mode and owner.
		if err := errors.Join(os.Chmod(dir, 0o755), c.Sandbox.Spec().Plan.Chown(dir)); err != nil {
			return "", err
		}
	case err != nil:
		return "", err
	case !info.IsDir():
		return "", fmt.Errorf("the image has a file there, and only directories can be volumes; set engine.ignore_image_defined_volumes, or use another image: %w", errdefs.ErrInvalidArgument)
	default:
		if err := copytree.Copy(ctx, dir, content); err != nil {
			return "", atomicfile.Explain(&fs.PathError{Op: "copy to", Path: dir, Err: err})
		}
	}
	failpoint.Hit(failpoint.ContainerVolumes)
	if c.Sandbox.Spec().Plan.User == nil {
		return dir, nil
	}
	return m.passVolume(c, number, dir)
}

// passVolume mounts a volume where the root of a user namespace can access it.
func (m *Mounts) passVolume(c *pod.Container, number int, dir string) (string, error) {
	at := m.pods.VolumeDir(c.ID(), len(c.Spec().Volumes)+number)
	if err := os.MkdirAll(at, 0o711); err != nil {
		return "", err
	}
	if err := unix.Mount(dir, at, "", unix.MS_BIND, ""); err != nil {
		return "", fmt.Errorf("mount %s: %w", at, err)
	}
	return at, nil
}
