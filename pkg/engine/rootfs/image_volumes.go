package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berth-cri/berth/pkg/engine/idmap"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/containerfs"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/validate"
)

// PlanVolumes finds the images among the mounts of c. The returned configuration names them by
// their ids: the kubelet does not collect images with ids that are in the status of containers. The
// public conformance suite requires the id in image_ref as well.
func (m *Mounts) PlanVolumes(s *pod.Sandbox, c *runtimeapi.ContainerConfig) (*runtimeapi.ContainerConfig, []pod.ImageVolume, error) {
	var volumes []pod.ImageVolume
	for i, given := range c.GetMounts() {
		if given.GetImage() == nil {
			continue
		}
		if err := validate.ImageMappings(given, s.Spec().Plan.UserNamespace()); err != nil {
			return nil, nil, volumeFailed(given.GetContainerPath(), err)
		}
		img, err := m.images.Get(given.GetImage().GetImage())
		if err != nil {
			return nil, nil, volumeFailed(given.GetContainerPath(), err)
		}
		if volumes == nil {
			c = proto.CloneOf(c)
		}
		named := c.GetMounts()[i].GetImage()
		named.Image, named.ImageRef = img.ID, img.ID
		volumes = append(volumes, pod.ImageVolume{
			Path: path.Join("/", given.GetContainerPath()), SubPath: given.GetImageSubPath(), ImageID: img.ID, ImageChain: img.ChainID.String(),
		})
	}
	return c, volumes, nil
}

func volumeFailed(path string, err error) error {
	return fmt.Errorf("%w: mount %s: %w", crierrors.ErrImageVolumeMountFailed, path, err)
}

// MountVolumes mounts the images of c's volumes below its bundle. Each container has its own
// mounts, until it has exited.
func (m *Mounts) MountVolumes(ctx context.Context, c *pod.Container) error {
	for i, v := range c.Spec().Volumes {
		if err := m.mountVolume(ctx, c, v, m.pods.VolumeDir(c.ID(), i)); err != nil {
			return volumeFailed(v.Path, err)
		}
	}
	return nil
}

func (m *Mounts) mountVolume(ctx context.Context, c *pod.Container, v pod.ImageVolume, dir string) error {
	img, err := m.images.Get(v.ImageID)
	if err != nil {
		return err
	}
	mounts, err := m.images.PrepareVolume(ctx, c.ID(), img, c.Spec().Snapshotter)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if c.Sandbox.Spec().Plan.User != nil {
		return idmap.Mount(c.Sandbox.Status().Namespaces.User, mounts, dir, m.pods.ScratchDir(c.ID()))
	}
	return mount.All(mounts, dir)
}

// VolumeSources returns the directories and files that are bound into c, by their path in c.
func (m *Mounts) VolumeSources(c *pod.Container) (map[string]string, error) {
	sources := make(map[string]string, len(c.Spec().Volumes))
	for i, v := range c.Spec().Volumes {
		part, err := imagePart(m.pods.VolumeDir(c.ID(), i), v.SubPath, catalog.IsArtifact(digest.Digest(v.ImageChain)))
		if err != nil {
			return nil, volumeFailed(v.Path, err)
		}
		sources[v.Path] = part
	}
	return sources, nil
}

// imagePart finds a directory of a mounted image, or a file if files is set. Links of the image
// stay inside the image.
func imagePart(root, sub string, files bool) (string, error) {
	if sub == "" {
		return root, nil
	}
	part, err := securejoin.SecureJoin(root, sub)
	if err != nil {
		return "", fmt.Errorf("image_sub_path %q: %w: %w", sub, err, errdefs.ErrInvalidArgument)
	}
	info, err := os.Lstat(part)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("image_sub_path %q is not in the image: %w", sub, errdefs.ErrInvalidArgument)
	case err != nil:
		return "", fmt.Errorf("image_sub_path %q: %w", sub, err)
	case files && info.Mode().IsRegular():
		return part, nil
	case !info.IsDir():
		return "", fmt.Errorf("image_sub_path %q is not a directory, and only directories can be mounted, or files of artifacts: %w", sub, errdefs.ErrInvalidArgument)
	}
	return part, nil
}

// LayersInUse returns what a container uses of the image store.
func LayersInUse(id string, spec *pod.ContainerSpec) []containerfs.Use {
	uses := []containerfs.Use{{Owner: id, ChainID: digest.Digest(spec.ImageChain), Snapshotter: spec.Snapshotter}}
	for _, v := range spec.Volumes {
		uses = append(uses, containerfs.Use{Owner: id, ChainID: digest.Digest(v.ImageChain), Snapshotter: spec.Snapshotter})
	}
	return uses
}
