package catalog

import (
	"slices"
	"strings"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is an image in the store. It is immutable: a pull or the removal of a name replaces it.
type Image struct {
	// ID is the digest of the image's configuration, "sha256:<hex>". For an artifact, a checkpoint,
	// or an image with layers outside the root filesystem it is the digest of the manifest. All CRI
	// calls use it.
	ID string
	// RepoTags and RepoDigests are the names the image was pulled by, normalised
	// ("docker.io/library/busybox:1"), sorted. RepoTags is empty for an image that was pulled by
	// digest or that lost its tag to another image.
	RepoTags, RepoDigests []string
	// ChainID identifies the unpacked layers; empty for an image without layers.
	ChainID digest.Digest
	// Size is the bytes of manifest, configuration and compressed layers.
	Size uint64
	// Config is the configuration for running the image; Store.Whole completes a large one.
	Config imagespec.ImageConfig
	// Platform is the platform the image was built for.
	Platform imagespec.Platform
	// ArtifactType is the type of an artifact; empty for a container image.
	ArtifactType string
	// Checkpoint is set if the image holds the archive of a checkpointed container, which is
	// restored when the image is run.
	Checkpoint bool
	// Pinned excludes the image from the kubelet's garbage collection.
	Pinned bool

	// Manifest is the platform's manifest, from which the layers are unpacked.
	Manifest imagespec.Descriptor
	// partial is set if Config has only the user.
	partial bool
	// unusable is why the image can only be removed. Config, ChainID and Platform are then empty.
	unusable error
}

// Tag returns ref in normalised form if it is a tag of the image, else the first tag. It is empty
// without tags.
func (i *Image) Tag(ref string) string {
	if tag := oneOf(i.RepoTags, ref); tag != "" {
		return tag
	}
	if len(i.RepoTags) == 0 {
		return ""
	}
	return i.RepoTags[0]
}

// Name returns ref in normalised form if it is a name by digest, else Tag. The digest is exact,
// but a tag may name an index of several images.
func (i *Image) Name(ref string) string {
	if name := oneOf(i.RepoDigests, ref); name != "" {
		return name
	}
	return i.Tag(ref)
}

// oneOf returns ref in normalised form if it is one of names, else "".
func oneOf(names []string, ref string) string {
	if named, err := ParseName(ref); err == nil && slices.Contains(names, named.String()) {
		return named.String()
	}
	return ""
}

// The annotations of a manifest that mark its image as a checkpoint. CRI-O used CheckpointOfCRIO
// before CheckpointOfCRIU existed.
const (
	CheckpointOfCRIO = "io.kubernetes.cri-o.annotations.checkpoint.name"
	CheckpointOfCRIU = metadata.CheckpointAnnotationName
)

func isCheckpoint(m imagespec.Manifest) bool {
	_, old := m.Annotations[CheckpointOfCRIO]
	_, now := m.Annotations[CheckpointOfCRIU]
	return old || now
}

func (i *Image) consistsOf(d digest.Digest) bool {
	return i.ID == d.String() || i.Manifest.Digest == d || slices.ContainsFunc(i.RepoDigests, func(name string) bool { return strings.HasSuffix(name, "@"+d.String()) })
}
