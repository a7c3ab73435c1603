// Package imagestores merges the answers of several image stores.
package imagestores

import (
	"maps"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Union returns the images of several stores, each ID once, in the order of the stores. An image
// that is in several stores has the names of all and the size of the largest, and is pinned if one
// store pins it. An ID with "sha256:" and the same ID without it stay two images, because a kubelet
// looks for exactly the ID that containers report. Pure.
func Union(stores []*runtimeapi.ListImagesResponse) []*runtimeapi.Image {
	if len(stores) == 1 {
		return Decoded(stores[0]).GetImages()
	}
	var all []*runtimeapi.Image
	place := map[string]int{}
	for _, store := range stores {
		for _, image := range Decoded(store).GetImages() {
			at, there := place[image.GetId()]
			if !there {
				place[image.GetId()] = len(all)
				all = append(all, image)
				continue
			}
			both := proto.CloneOf(all[at])
			both.RepoTags = AppendMissing(both.GetRepoTags(), image.GetRepoTags())
			both.RepoDigests = AppendMissing(both.GetRepoDigests(), image.GetRepoDigests())
			both.Size = max(both.GetSize(), image.GetSize())
			both.Pinned = both.GetPinned() || image.GetPinned()
			all[at] = both
		}
	}
	return all
}

// WithName returns the images that a name or ID prefix selects; an empty name selects all. Pure.
func WithName(images []*runtimeapi.Image, name string) []*runtimeapi.Image {
	if name == "" {
		return images
	}
	full := normalized(name)
	var chosen []*runtimeapi.Image
	for _, image := range images {
		if slices.Contains(image.GetRepoTags(), full) || slices.Contains(image.GetRepoDigests(), full) || isIDPrefix(image.GetId(), name) {
			chosen = append(chosen, image)
		}
	}
	return chosen
}

// normalized returns an image's name with its default registry, path and tag.
func normalized(image string) string {
	if named, err := reference.ParseDockerRef(image); err == nil {
		return named.String()
	}
	return image
}

// minID is the shortest ID prefix, in digits; shorter words are names.
const minID = 6

// isIDPrefix reports whether a name is an image's ID or a prefix of it.
func isIDPrefix(id, name string) bool {
	return len(bareID(name)) >= minID && strings.HasPrefix(bareID(id), bareID(name))
}

// bareID returns an image's ID without its digest's algorithm, which CRI-O omits.
func bareID(id string) string { return strings.TrimPrefix(id, "sha256:") }

// AppendMissing appends the names that are not present yet.
func AppendMissing(names, more []string) []string {
	for _, name := range more {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Decoded decodes a message that may have all its fields among the unknown ones. A message that
// cannot be decoded is returned unchanged.
func Decoded[M any, P interface {
	*M
	proto.Message
}](m P) P {
	if len(m.ProtoReflect().GetUnknown()) == 0 {
		return m
	}
	encoded, err := proto.Marshal(m)
	if err != nil {
		return m
	}
	read := P(new(M))
	if err := proto.Unmarshal(encoded, read); err != nil {
		return m
	}
	return read
}

// Status merges the answers of several stores. With anyOf it returns the first answer with an
// image. Otherwise it returns the first answer if all stores have the same image, and an answer
// without an image if they do not. Pure.
func Status(all []*runtimeapi.ImageStatusResponse, anyOf bool) *runtimeapi.ImageStatusResponse {
	if anyOf {
		if at := slices.IndexFunc(all, present); at >= 0 {
			return all[at]
		}
		return all[0]
	}
	for _, one := range all {
		if !present(one) {
			return one
		}
		if bareID(Decoded(one).GetImage().GetId()) != bareID(Decoded(all[0]).GetImage().GetId()) {
			return &runtimeapi.ImageStatusResponse{}
		}
	}
	return all[0]
}

// imageField is the number of the image in a status.
var imageField = (&runtimeapi.ImageStatusResponse{}).ProtoReflect().Descriptor().Fields().ByName("image").Number()

// present reports whether the store has the image. An encoded image counts even if it cannot be
// decoded.
func present(r *runtimeapi.ImageStatusResponse) bool {
	for b := r.ProtoReflect().GetUnknown(); len(b) > 0; {
		n, _, size := protowire.ConsumeField(b)
		if n == imageField || size < 0 {
			return n == imageField
		}
		b = b[size:]
	}
	return r.GetImage() != nil
}

// AppendFilesystems appends the filesystems with a new mount point.
func AppendFilesystems(to, more []*runtimeapi.FilesystemUsage) []*runtimeapi.FilesystemUsage {
	seen := map[string]bool{}
	for _, f := range to {
		seen[f.GetFsId().GetMountpoint()] = true
	}
	for _, f := range more {
		if !seen[f.GetFsId().GetMountpoint()] {
			to = append(to, f)
		}
	}
	return to
}

// Removals returns the names and IDs to remove from one store. found has, by store, the ID of the
// image with the name. A kubelet regards an ID with and without "sha256:" as two images, one of
// which may be in use. So if name is an ID, a store that writes it differently is skipped. Pure.
func Removals(name, store string, found map[string]string) []string {
	for _, id := range found {
		if id == name {
			if own := found[store]; own != "" && own != name {
				return nil
			}
			return []string{name}
		}
	}
	all := map[string]bool{}
	for _, id := range found {
		if id != "" && bareID(id) != bareID(found[store]) {
			all[id] = true
		}
	}
	return append([]string{name}, slices.Sorted(maps.Keys(all))...)
}
