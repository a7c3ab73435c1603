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

// Images is what images a daemon had when it was asked last, and where it keeps
// them: also when it does not answer they are on the node's disk. What changes it
// returns whether that is to be written down. All methods may be called at any time
// from any goroutine.
type Images struct {
	mu sync.Mutex
	// images is an encoded list, and there are none before known.
	images wire.Frame
	known  bool
	// filesystems is nil before the daemon was asked for them.
	filesystems *runtimeapi.ImageFsInfoResponse
	// turn is that of the last list asked for, taken that of the list at hand.
	turn, taken uint64
}

// Mark is taken before a list is asked for.
func (s *Images) Mark() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	return s.turn
}

// Take takes over a whole list.
func (s *Images) Take(f wire.Frame, turn uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn < s.taken {
		return false // one that was asked for later, or a removal, was faster
	}
	differs := !s.known || !slices.EqualFunc(items(s.images), items(f), bytes.Equal)
	s.images, s.known, s.taken = slices.Clone(f), true, turn
	return differs
}

// items are those of a list, in an order of their own: daemons have none.
func items(f wire.Frame) [][]byte { return slices.SortedFunc(wire.Items(f), bytes.Compare) }

// Keeps takes over where images are.
func (s *Images) Keeps(fs *runtimeapi.ImageFsInfoResponse) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.filesystems == nil
	s.filesystems = proto.CloneOf(fs)
	return first // what changes later is how full they are
}

// Removed takes over that an image, by any of its names, is not there any more.
func (s *Images) Removed(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	s.taken = s.turn
	left := wire.Without(s.images, func(item []byte) bool {
		i := &runtimeapi.Image{}
		return proto.Unmarshal(item, i) == nil && (i.GetId() == name || slices.Contains(i.GetRepoTags(), name) || slices.Contains(i.GetRepoDigests(), name))
	})
	gone := len(left) < len(s.images)
	s.images = left
	return gone
}

// Last is the list at hand.
func (s *Images) Last() (wire.Frame, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.images, s.known
}

// LastFilesystems are those that the daemon told of last, nil if it never did.
func (s *Images) LastFilesystems() *runtimeapi.ImageFsInfoResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	return proto.CloneOf(s.filesystems)
}

// save puts what is known into a state file.
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

// load takes over what a state file has.
func (s *Images) load(from *saved) error {
	if !wire.Sound(from.Images, (&runtimeapi.ListImagesResponse{}).ProtoReflect().Descriptor()) {
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
