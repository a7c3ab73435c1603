package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// stateSuffix ends the names of state files.
const stateSuffix = ".state"

// stateFile keeps on disk what is known of one daemon: which handlers lead there,
// its images, two lists of pods and containers, and the changes since. It is written
// whole, and changes are appended. It is not synced: what it is for does not survive
// a reboot anyway. All methods may be called at any time from any goroutine.
type stateFile struct {
	path   string
	known  *known
	images *lastKnown

	mu sync.Mutex
	// record is nil before handlers lead to the daemon.
	record *record
	file   *os.File // open for appending; nil before the first write
	// stale says that the file is not what is known: it is written whole before anything
	// is added.
	stale bool
	// closed says that nothing is written any more, not even by calls that go on.
	closed bool
}

// record says whose pods a daemon has, so that they are found again by a berth
// whose configuration no longer names it.
type record struct {
	Endpoint string    `json:"endpoint"`
	Handlers []Handler `json:"handlers"`
}

func (r record) encode() ([]byte, error) {
	content, err := json.Marshal(r)
	return append(head(handlersRecord, len(content)), content...), err
}

func decodeRecord(content []byte) (*record, error) {
	r := &record{}
	if err := json.Unmarshal(content, r); err != nil {
		return nil, err
	}
	if !filepath.IsAbs(r.Endpoint) {
		return nil, fmt.Errorf("endpoint %q is not a path", r.Endpoint)
	}
	return r, nil
}

// openState reads what was known. Of a damaged file it returns the parts that are
// sound, beside the damage. That nothing can be written is damage too, and not more: a
// full disk costs no pod.
func openState(path string) (s *stateFile, damage, err error) {
	s = &stateFile{path: path, known: &known{}, images: &lastKnown{}}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, err
	}
	damage, err = s.load()
	if err != nil || damage == nil {
		return s, nil, err
	}
	s.stale = true
	if bad := s.write(); bad != nil {
		damage = errors.Join(damage, fmt.Errorf("write %s: %w", path, bad))
	}
	return s, damage, nil
}

// load reads the file. What is known is as old as the file, whose time
// is that of the lists, or of a call since. What a killed daemon had half written at the
// end is left out.
func (s *stateFile) load() (damage, err error) {
	info, err := os.Stat(s.path)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	content, err := os.ReadFile(s.path)
	if err != nil {
		return nil, err
	}
	written := info.ModTime()
	var pods error // what is wrong with their records
	// Behind a broken one of them nothing counts: there may be thousands of them.
	for len(content) > 0 && pods == nil {
		at, body, rest, whole := cutRecord(content)
		if !whole {
			s.stale = true // what is added to it could not be read
			break
		}
		content = rest
		var bad error
		switch at {
		case handlersRecord:
			s.record, bad = decodeRecord(body)
		case imageList, filesystemsInfo:
			bad = s.images.load(at, body)
		default:
			pods = s.known.load(at, body, written)
		}
		damage = errors.Join(damage, bad)
	}
	if _, bad := s.known.state(); bad != nil || pods != nil {
		damage, s.known = errors.Join(damage, pods, bad), &known{}
	}
	if damage != nil {
		damage = fmt.Errorf("read %s: %w", s.path, damage)
	}
	return damage, err
}

// setRecord replaces the record, and writes the file.
func (s *stateFile) setRecord(r record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("record the handlers of a daemon whose backend is closed: %w", errdefs.ErrUnavailable)
	}
	before := s.record
	s.record = &r
	err := s.replace()
	if err != nil {
		s.record = before
	}
	return err
}

// write writes down all that is known.
func (s *stateFile) write() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replace()
}

// replace replaces the file whole; mu is held.
func (s *stateFile) replace() error {
	if s.closed {
		return nil
	}
	// Lists may be large, and are not copied.
	var content net.Buffers
	if s.record != nil {
		r, err := s.record.encode()
		if err != nil {
			return err
		}
		content = append(content, r)
	}
	images, err := s.images.encode()
	if err != nil {
		return err
	}
	pods, at, err := s.known.encode()
	if err != nil {
		return err
	}
	file, err := create(s.path, append(append(content, images...), pods...), at)
	if err != nil {
		return err
	}
	before := s.file
	s.file, s.stale = file, false
	if before != nil {
		return before.Close()
	}
	return nil
}

// create puts a file in the place of path that is open for appending, and as old as
// at, if that is not zero.
func create(path string, content net.Buffers, at time.Time) (_ *os.File, err error) {
	fresh := path + ".new"
	file, err := os.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, file.Close(), os.Remove(fresh))
		}
	}()
	if _, err := content.WriteTo(file); err != nil {
		return nil, err
	}
	if !at.IsZero() {
		if err := os.Chtimes(fresh, at, at); err != nil {
			return nil, err
		}
	}
	return file, os.Rename(fresh, path)
}

// add writes down one more change.
func (s *stateFile) add(c change) error {
	r, err := c.encode()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if s.stale {
		if err := s.replace(); err != nil {
			return err
		}
	}
	if s.file == nil {
		if s.file, err = os.OpenFile(s.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600); err != nil {
			return err
		}
	}
	_, err = s.file.Write(r)
	return err
}

// close ends the writing, and forgets everything if the daemon is no backend of
// this berth any more.
func (s *stateFile) close(forget bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	var err error
	if s.file != nil {
		err = s.file.Close()
		s.file = nil
	}
	if forget {
		err = errors.Join(err, ignoreMissing(os.Remove(s.path)))
	}
	return err
}

// readRecords returns the records of all state files of a directory. What cannot be
// read is an error beside the others.
func readRecords(dir string) ([]record, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	var all []record
	var failed []error
	for _, e := range entries {
		if filepath.Ext(e.Name()) != stateSuffix {
			continue
		}
		path := filepath.Join(dir, e.Name())
		r, err := readRecord(path)
		if err != nil {
			failed = append(failed, fmt.Errorf("read %s: %w", path, err))
			continue
		}
		if r != nil {
			all = append(all, *r)
		}
	}
	return all, errors.Join(failed...)
}

// readRecord returns the record that a state file begins with, nil if it has none.
func readRecord(path string) (*record, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	at, body, _, whole := cutRecord(content)
	if !whole || at != handlersRecord {
		return nil, nil
	}
	return decodeRecord(body)
}
