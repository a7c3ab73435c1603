package remote

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// stock is what images a daemon had when it was asked last, and where it keeps
// them: also when it does not answer they are on the node's disk. It is kept on
// disk, unsynced as a ledger is. All methods may be called at any time from any
// goroutine.
type lastKnown struct {
	path string

	mu sync.Mutex
	// images is an encoded list, and there are none before known.
	images frame
	known  bool
	// filesystems is nil before the daemon was asked for them.
	filesystems *runtimeapi.ImageFsInfoResponse
	// turn is that of the last list asked for, taken that of the list at hand.
	turn, taken uint64
}

// mark is taken before a list is asked for.
func (s *lastKnown) mark() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	return s.turn
}

// take takes over a whole list.
func (s *lastKnown) take(f frame, turn uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn < s.taken {
		return nil // one that was asked for later, or a removal, was faster
	}
	differs := !s.known || !slices.EqualFunc(items(s.images), items(f), bytes.Equal)
	s.images, s.known, s.taken = slices.Clone(f), true, turn
	if !differs {
		return nil
	}
	return s.write()
}

// items are those of a list, in an order of their own: daemons have none.
func items(f frame) (all [][]byte) {
	eachField(f, func(n protowire.Number, content []byte) {
		if n == itemsField {
			all = append(all, content)
		}
	})
	slices.SortFunc(all, bytes.Compare)
	return all
}

// keeps takes over where images are.
func (s *lastKnown) keeps(fs *runtimeapi.ImageFsInfoResponse) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.filesystems == nil
	s.filesystems = proto.CloneOf(fs)
	if !first {
		return nil // what has changed is how full they are
	}
	return s.write()
}

// removed takes over that an image, by any of its names, is not there any more.
func (s *lastKnown) removed(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.turn++
	s.taken = s.turn
	var left frame
	gone := false
	for _, item := range items(s.images) {
		i := &runtimeapi.Image{}
		if proto.Unmarshal(item, i) == nil && (i.GetId() == name || slices.Contains(i.GetRepoTags(), name) || slices.Contains(i.GetRepoDigests(), name)) {
			gone = true
			continue
		}
		left = protowire.AppendTag(left, itemsField, protowire.BytesType)
		left = protowire.AppendBytes(left, item)
	}
	if !gone {
		return nil
	}
	s.images = left
	return s.write()
}

// last is the list at hand.
func (s *lastKnown) last() (frame, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.images, s.known
}

// lastFilesystems are those that the daemon told of last, nil if it never did.
func (s *lastKnown) lastFilesystems() *runtimeapi.ImageFsInfoResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.filesystems == nil {
		return nil
	}
	return proto.CloneOf(s.filesystems)
}

// Kinds of records in the file of a stock.
const (
	imageList       kind = 'I'
	filesystemsInfo kind = 'F'
)

// write replaces the file whole; mu is held.
func (s *lastKnown) write() error {
	var content []byte
	if s.known {
		content = append(append(content, head(imageList, len(s.images))...), s.images...)
	}
	if s.filesystems != nil {
		told, err := proto.Marshal(s.filesystems)
		if err != nil {
			return err
		}
		content = append(append(content, head(filesystemsInfo, len(told))...), told...)
	}
	return atomicfile.Write(s.path, content, 0o600, atomicfile.Relaxed)
}

// load reads what was written.
func (s *lastKnown) load() error {
	content, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(content) > 0 {
		size, n := protowire.ConsumeVarint(content[1:])
		if n < 0 || size > uint64(len(content)-1-n) {
			return fmt.Errorf("read %s: truncated", s.path)
		}
		body := content[1+n : 1+n+int(size)]
		switch kind(content[0]) {
		case imageList:
			if !sound(body, imageLists.shape) {
				return fmt.Errorf("read %s: the list of images is damaged", s.path)
			}
			s.images, s.known = slices.Clone(body), true
		case filesystemsInfo:
			told := &runtimeapi.ImageFsInfoResponse{}
			if err := proto.Unmarshal(body, told); err != nil {
				return fmt.Errorf("read %s: %w", s.path, err)
			}
			s.filesystems = told
		}
		content = content[1+n+int(size):]
	}
	return nil
}

// forget removes the file: the daemon is no backend of this berth any more.
func (s *lastKnown) forget() error { return ignoreMissing(os.Remove(s.path)) }
