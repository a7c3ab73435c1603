package catalog

import (
	"slices"
	"strings"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Image is an image that is whole in the store. It never changes; a pull or a
// removal puts another one in its place.
type Image struct {
	// ID is the digest of the image's configuration, "sha256:<hex>"; that of the
	// manifest for an artifact, and where layers are no part of the root filesystem.
	// It is the one identifier that all CRI calls use.
	ID string
	// RepoTags and RepoDigests are the names the image was pulled by,
	// normalised ("docker.io/library/busybox:1"), sorted. RepoTags is empty for
	// an image that was pulled by digest or whose tag went to another image.
	RepoTags, RepoDigests []string
	// ChainID identifies the unpacked layers; empty for an image without layers.
	ChainID digest.Digest
	// Size is the bytes of manifest, configuration and compressed layers.
	Size uint64
	// Config is what the image says about running it; Store.Whole has all of it.
	Config imagespec.ImageConfig
	// Platform is what the image was built for.
	Platform imagespec.Platform
	// ArtifactType says what an artifact is; empty for a container image.
	ArtifactType string
	// Checkpoint says that it holds the archive of a checkpointed container, which goes on
	// where it is run.
	Checkpoint bool
	// Pinned says that the kubelet's garbage collection must leave it alone.
	Pinned bool

	// Manifest is the platform's manifest, from which the layers are unpacked.
	Manifest imagespec.Descriptor
	// partial says that Config has no more than the user.
	partial bool
	// unusable is why nothing can be done with the image but remove it. Config,
	// ChainID and Platform are then empty.
	unusable error
}

// Tag is a tag of the image: the one that asked is, however it is written, else the
// first. Empty is none.
func (i *Image) Tag(asked string) string {
	if tag := oneOf(i.RepoTags, asked); tag != "" {
		return tag
	}
	if len(i.RepoTags) == 0 {
		return ""
	}
	return i.RepoTags[0]
}

// Name is Tag, or the name by digest that asked is: a tag may stand for an index, of which
// asked is one image.
func (i *Image) Name(asked string) string {
	if name := oneOf(i.RepoDigests, asked); name != "" {
		return name
	}
	return i.Tag(asked)
}

// oneOf is asked as names have it; empty if it is none of them.
func oneOf(names []string, asked string) string {
	if named, err := ParseName(asked); err == nil && slices.Contains(names, named.String()) {
		return named.String()
	}
	return ""
}

// The annotations by which a manifest says that its image is made of the archive of a
// checkpointed container. The first is that of CRI-O before others had it too.
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
