package router

import (
	"slices"
	"strings"

	"github.com/distribution/reference"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// union is all images of several stores, each once, by the id. An image that is
// in several has the names of all, is as large as in the store where it is
// largest, and is pinned if one store pins it. The first store's order stays.
// The two ways to write an id are two images here as they are to a kubelet, which
// looks for the very id that containers say they are of. Pure.
func union(stores []*runtimeapi.ListImagesResponse) []*runtimeapi.Image {
	if len(stores) == 1 {
		return understood(stores[0]).GetImages()
	}
	var all []*runtimeapi.Image
	place := map[string]int{}
	for _, store := range stores {
		for _, image := range understood(store).GetImages() {
			at, there := place[image.GetId()]
			if !there {
				place[image.GetId()] = len(all)
				all = append(all, image)
				continue
			}
			both := proto.CloneOf(all[at])
			both.RepoTags = withMore(both.GetRepoTags(), image.GetRepoTags())
			both.RepoDigests = withMore(both.GetRepoDigests(), image.GetRepoDigests())
			both.Size = max(both.GetSize(), image.GetSize())
			both.Pinned = both.GetPinned() || image.GetPinned()
			all[at] = both
		}
	}
	return all
}

// withName are the images that a name can stand for: all of them without one. Pure.
func withName(images []*runtimeapi.Image, name string) []*runtimeapi.Image {
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

// withMore adds the names that are not there yet.
func withMore(names, more []string) []string {
	for _, name := range more {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// understood is a message that may have come unread, read. One that cannot be
// read is what it was.
func understood[M any, P interface {
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

// hasUnread says whether a field is there that nobody has read.
func hasUnread(m proto.Message, field protowire.Number) bool {
	for b := m.ProtoReflect().GetUnknown(); len(b) > 0; {
		n, _, size := protowire.ConsumeField(b)
		if size < 0 {
			return false
		}
		if n == field {
			return true
		}
		b = b[size:]
	}
	return false
}

// partSize is how many images one message of a stream has.
const partSize = 500
