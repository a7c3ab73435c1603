// Package imagestores decides what the answers of several image stores are as one.
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

// Union is all images of several stores, each once, by the id. An image that is
// in several has the names of all, is as large as in the store where it is
// largest, and is pinned if one store pins it. The first store's order stays.
// The two ways to write an id are two images here as they are to a kubelet, which
// looks for the very id that containers say they are of. Pure.
func Union(stores []*runtimeapi.ListImagesResponse) []*runtimeapi.Image {
	if len(stores) == 1 {
		return Understood(stores[0]).GetImages()
	}
	var all []*runtimeapi.Image
	place := map[string]int{}
	for _, store := range stores {
		for _, image := range Understood(store).GetImages() {
			at, there := place[image.GetId()]
			if !there {
				place[image.GetId()] = len(all)
				all = append(all, image)
				continue
			}
			both := proto.CloneOf(all[at])
			both.RepoTags = WithMore(both.GetRepoTags(), image.GetRepoTags())
			both.RepoDigests = WithMore(both.GetRepoDigests(), image.GetRepoDigests())
			both.Size = max(both.GetSize(), image.GetSize())
			both.Pinned = both.GetPinned() || image.GetPinned()
			all[at] = both
		}
	}
	return all
}

// WithName are the images that a name can stand for: all of them without one. Pure.
func WithName(images []*runtimeapi.Image, name string) []*runtimeapi.Image {
	if name == "" {
		return images
	}
	full := whole(name)
	var chosen []*runtimeapi.Image
	for _, image := range images {
		if slices.Contains(image.GetRepoTags(), full) || slices.Contains(image.GetRepoDigests(), full) || startOfID(image.GetId(), name) {
			chosen = append(chosen, image)
		}
	}
	return chosen
}

// whole is an image's name with what may be left out of it.
func whole(image string) string {
	if named, err := reference.ParseDockerRef(image); err == nil {
		return named.String()
	}
	return image
}

// minID is how many digits of an id stand for it at least: shorter words are names.
const minID = 6

// startOfID says whether a name is an image's id, or the beginning of it.
func startOfID(id, name string) bool {
	return len(bareID(name)) >= minID && strings.HasPrefix(bareID(id), bareID(name))
}

// bareID is an image's id without the name of its digest's algorithm, which
// CRI-O leaves out.
func bareID(id string) string { return strings.TrimPrefix(id, "sha256:") }

// WithMore adds the names that are not there yet.
func WithMore(names, more []string) []string {
	for _, name := range more {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Understood is a message that may have come unread, read. One that cannot be
// read is what it was.
func Understood[M any, P interface {
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

// Status is the answer for several stores: that of the first which has the image if any is enough, else
// that of the first if all have the same. Pure.
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
		if bareID(Understood(one).GetImage().GetId()) != bareID(Understood(all[0]).GetImage().GetId()) {
			return &runtimeapi.ImageStatusResponse{}
		}
	}
	return all[0]
}

// imageField is the number of the image in a status.
var imageField = (&runtimeapi.ImageStatusResponse{}).ProtoReflect().Descriptor().Fields().ByName("image").Number()

// present is whether the store has the image. One that has come undecoded is there, also if it
// cannot be decoded.
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

// AppendFilesystems adds those whose mount point is not there yet.
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

// Removals are what one store is asked to remove, if found are the ids of what
// the name stands for in each store that has it. An id is written in two ways,
// which a kubelet takes for two images, one of which may be in use: a store that
// writes it in another way than an exact one is left alone. Pure.
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
