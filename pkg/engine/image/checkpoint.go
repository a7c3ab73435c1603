package image

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// The annotations by which a manifest says that its image is made of the archive of a
// checkpointed container. The first is that of CRI-O before others had it too.
const (
	checkpointOfCRIO = "io.kubernetes.cri-o.annotations.checkpoint.name"
	checkpointOfCRIU = metadata.CheckpointAnnotationName
)

func isCheckpoint(m imagespec.Manifest) bool {
	_, old := m.Annotations[checkpointOfCRIO]
	_, now := m.Annotations[checkpointOfCRIU]
	return old || now
}

// MayRestore refuses an image of a checkpoint that has no name which is allowed. What is in
// it has the privileges that it had, whatever its new pod has.
func (s *Store) MayRestore(img *Image) error {
	if s.checkpoints.match(img.RepoTags...) || s.checkpoints.match(img.RepoDigests...) {
		return nil
	}
	name := img.ID
	if names := append(append([]string{}, img.RepoTags...), img.RepoDigests...); len(names) > 0 {
		name = names[0]
	}
	return fmt.Errorf("image %s is made of a checkpoint, and registry.checkpoint_images does not allow it; "+
		"if you trust its processes with the privileges that they had, add its name there and restart berth: %w", name, errdefs.ErrPermissionDenied)
}

// Look calls f with a directory where the files of an image can be read. They are there for
// as long as f takes; owner is a name for that which no container has.
func (s *Store) Look(ctx context.Context, owner string, img *Image, snapshotter string, f func(dir string)) error {
	mounts, err := s.PrepareVolume(ctx, owner, img, snapshotter)
	if err != nil {
		return err
	}
	defer func() {
		if err := s.RemoveRootfs(context.WithoutCancel(ctx), owner, snapshotter); err != nil {
			log.G(ctx).WithError(err).WithField("image", img.ID).Warn("Failed to release layers of an image")
		}
	}()
	return mount.WithReadonlyTempMount(ctx, mounts, func(dir string) error { f(dir); return nil })
}

// ByContent finds an image that can be run by its id, or by the digest in a name: both say
// what is in it, whatever it is called here. errdefs.ErrInvalidArgument for a name without a
// digest, ErrNotFound where there is no such image.
func (s *Store) ByContent(ref string, wanted Platform) (*Image, error) {
	d, err := contentDigest(ref)
	if err != nil {
		return nil, err
	}
	missing := fmt.Errorf("image %.300q is not on this node: %w", ref, errdefs.ErrNotFound)
	for _, img := range s.catalog.list() {
		if !img.consistsOf(d) {
			continue
		}
		run, err := s.ToRun(img.ID, wanted)
		if err == nil {
			return run, nil
		}
		missing = err
	}
	return nil, missing
}

// contentDigest is what an id is, or a name ends with.
func contentDigest(ref string) (digest.Digest, error) {
	_, text, named := strings.Cut(ref, "@")
	if !named {
		text = "sha256:" + strings.TrimPrefix(ref, "sha256:")
	}
	d, err := digest.Parse(text)
	if err != nil {
		return "", fmt.Errorf("%.300q names no image by its digest: %w", ref, errdefs.ErrInvalidArgument)
	}
	return d, nil
}

func (i *Image) consistsOf(d digest.Digest) bool {
	return i.ID == d.String() || i.manifest.Digest == d || slices.ContainsFunc(i.RepoDigests, func(name string) bool { return strings.HasSuffix(name, "@"+d.String()) })
}
