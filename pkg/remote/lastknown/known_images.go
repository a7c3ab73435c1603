package lastknown

import (
	"bytes"
	"errors"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/wire"
)

// Images contains the last known images and image filesystems of a daemon: both stay on the node's
// disk while the daemon does not answer. Methods that change Images return whether the state file
// must be written. All methods may be called at any time from any goroutine.
type Images struct {
	mu sync.Mutex
	// images is an encoded list, valid if known is set.
	images wire.Frame
	known  bool
	// filesystems is nil before the first answer.
	filesystems *runtimeapi.ImageFsInfoResponse
	// request is the number of the last list or removal, accepted that of the stored state.
	request, accepted uint64
}

// Mark returns the number of a list; it must be called before the list is requested.
func (s *Images) Mark() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.request++
	return s.request
}

// Take stores a whole list; turn is its number from Mark.
func (s *Images) Take(f wire.Frame, turn uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn < s.accepted {
		return false // a later request was answered first, or an image was removed
	}
	differs := !s.known || !slices.EqualFunc(items(s.images), items(f), bytes.Equal)
	s.images, s.known, s.accepted = slices.Clone(f), true, turn
	return differs
}

// items returns the items of a list, sorted, because daemons list in no fixed order.
func items(f wire.Frame) [][]byte { return slices.SortedFunc(wire.Items(f), bytes.Compare) }

// TakeFilesystems stores the filesystems of images.
func (s *Images) TakeFilesystems(fs *runtimeapi.ImageFsInfoResponse) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.filesystems == nil
	s.filesystems = proto.CloneOf(fs)
	return first // later only their usage changes
}

// Removed removes the image with the given ID, tag or digest.
func (s *Images) Removed(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.request++
	s.accepted = s.request
	left := wire.Without(s.images, func(item []byte) bool {
		i := &runtimeapi.Image{}
		return proto.Unmarshal(item, i) == nil && (i.GetId() == name || slices.Contains(i.GetRepoTags(), name) || slices.Contains(i.GetRepoDigests(), name))
	})
	gone := len(left) < len(s.images)
	s.images = left
	return gone
}

// Last returns the last known list, false without one.
func (s *Images) Last() (wire.Frame, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.images, s.known
}

// LastFilesystems returns the last known filesystems, nil if there are none.
func (s *Images) LastFilesystems() *runtimeapi.ImageFsInfoResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	return proto.CloneOf(s.filesystems)
}

// save copies the known images into the content of a state file.
func (s *Images) save(to *saved) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known {
		to.Images = append(wire.Frame{}, s.images...)
	}
	if s.filesystems != nil {
		to.Filesystems, err = proto.Marshal(s.filesystems)
	}
	return err
}

// load restores the content of a state file.
func (s *Images) load(from *saved) error {
	if !wire.WellFormed(from.Images, (&runtimeapi.ListImagesResponse{}).ProtoReflect().Descriptor()) {
		return errors.New("the list of images is damaged")
	}
	var told *runtimeapi.ImageFsInfoResponse
	if from.Filesystems != nil {
		told = &runtimeapi.ImageFsInfoResponse{}
		if err := proto.Unmarshal(from.Filesystems, told); err != nil {
			return err
		}
	}
	s.images, s.known, s.filesystems = from.Images, from.Images != nil, told
	return nil
}
