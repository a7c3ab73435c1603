package catalog

import (
	"slices"
	"strings"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

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
