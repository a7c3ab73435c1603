package lastknown

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/record"
)

const (
	// Suffix is the extension of state files.
	Suffix = ".state"
	// stateFormat is the format of saved. A file of another format counts as damaged.
	stateFormat = 1
)

// saved is the content of a state file: the last known entries of one daemon.
type saved struct {
	Record *Record `json:"record,omitempty"`
	// Images, Filesystems, Sandboxes and Containers are encoded answers of the daemon; Images and
	// Filesystems are null before the first one.
	Images      []byte `json:"images"`
	Filesystems []byte `json:"filesystems"`
	Sandboxes   []byte `json:"sandboxes"`
	Containers  []byte `json:"containers"`
	// Listed is the time of the older list: that of the sandboxes or that of the containers.
	Listed    time.Time         `json:"listed"`
	HandlerOf map[string]string `json:"handlerOf,omitempty"`
}

// Record contains the handlers that use a daemon, so that berth finds their pods even if its
// configuration no longer names the daemon.
type Record struct {
	Endpoint string    `json:"endpoint"`
	Handlers []Handler `json:"handlers"`
}

// File stores the last known entries of one daemon. It is written as a whole and not synced,
// because its content is useless after a reboot. All methods may be called at any time from any
// goroutine.
type File struct {
	Path   string
	Known  *Pods
	Images *Images

	mu sync.Mutex
	// record is nil until a handler uses the daemon.
	record *Record
	// closed stops all writes, also those of calls still in progress.
	closed bool
}

// Open reads the last known entries. If the file is damaged, it returns the intact parts, and the
// damage as the second value. If the file cannot be read, it returns an error: the file may be
// intact, and must not be replaced.
func Open(path string) (s *File, damage, err error) {
	s = &File{Path: path, Known: &Pods{}, Images: &Images{}}
	c, damage := readState(path)
	var unread *fs.PathError
	switch {
	case errors.As(damage, &unread):
		return s, nil, ignoreMissing(damage)
	case damage == nil:
		s.record = c.Record
		damage = errors.Join(s.Images.load(c), s.Known.load(c))
	}
	if damage != nil {
		damage = fmt.Errorf("read %s: %w", path, damage)
	}
	return s, damage, nil
}

// readState returns an fs.PathError if the file cannot be read.
func readState(path string) (*saved, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := &saved{}
	if err := record.Decode(text, stateFormat, c); err != nil {
		return nil, err
	}
	if c.Record != nil && !filepath.IsAbs(c.Record.Endpoint) {
		return nil, fmt.Errorf("endpoint %q is not a path", c.Record.Endpoint)
	}
	return c, nil
}

// SetRecord records the handlers that use the daemon. After Close it returns
// errdefs.ErrUnavailable.
func (s *File) SetRecord(r Record) error {
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

// Write writes all last known entries.
func (s *File) Write() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replace()
}

// replace replaces the file; mu is held.
func (s *File) replace() error {
	if s.closed {
		return nil
	}
	c := &saved{Record: s.record}
	if err := errors.Join(s.Images.save(c), s.Known.save(c)); err != nil {
		return err
	}
	return record.Write(s.Path, stateFormat, c, atomicfile.Relaxed)
}

// Close stops all writes. forget removes the file, for a daemon that is no longer a backend.
func (s *File) Close(forget bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if forget {
		return atomicfile.Remove(s.Path)
	}
	return nil
}

// ReadRecords returns the records of all state files in a directory, and an error for those that
// cannot be read.
func ReadRecords(dir string) ([]Record, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	var all []Record
	var failed []error
	for _, e := range entries {
		if filepath.Ext(e.Name()) != Suffix {
			continue
		}
		path := filepath.Join(dir, e.Name())
		c, err := readState(path)
		if err != nil {
			failed = append(failed, fmt.Errorf("read %s: %w", path, err))
		} else if c.Record != nil {
			all = append(all, *c.Record)
		}
	}
	return all, errors.Join(failed...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Handler is a handler that uses a daemon.
type Handler struct {
	// Name is this berth's name, Remote the daemon's.
	Name, Remote string
}
