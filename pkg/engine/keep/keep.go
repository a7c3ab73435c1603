// Package keep holds copies of the runtime binaries that pods were made with, by
// their content, so that whatever happens to an installed binary happens to new
// pods only.
//
//	b, err := store.Copy(identity) // once for each binary, reads all of it
//	ok := store.Untouched(b)       // a stat, before the copy is used
//	err = store.Verify(b)          // reads all of it, makes it again if it can
//
// A copy is at <dir>/runtime-<hash>/<name>, under the name of the installed
// binary: programs look at how they are called. It is a copy and no hard link,
// which would change with a binary that is overwritten in place. The interpreter
// of a script, and the libraries of a dynamically linked program, are not kept.
//
// The Store removes nothing, and does not know who needs what: whoever does must
// not remove a copy while Copy or Verify may be making it.
package keep

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/probe"
)

// Prefix begins the names of directories of copies. What is there under
// HalfPrefix did not come to its end.
const (
	Prefix     = "runtime-"
	HalfPrefix = ".new-"
)

// ErrChanged says that the installed binary is not the one any more that was
// asked for. Whoever gets it looks at the binary again.
var ErrChanged = fmt.Errorf("the binary changed while it was copied: %w", errdefs.ErrUnavailable)

// Binary is a runtime program. Its JSON form is stored with every pod that runs
// on it: fields may be added, never renamed.
type Binary struct {
	// Path is where it was installed, and Identity what it was then.
	Path     string         `json:"path"`
	Identity probe.Identity `json:"identity"`
	SHA256   string         `json:"sha256"`
	// Version is what it said of itself.
	Version string `json:"version,omitempty"`
	// Kept is the copy's path below the store's directory; empty when there is
	// none, and Path is what runs.
	Kept string `json:"kept,omitempty"`
	// Stamp is the copy's, when its content was last known to be right.
	Stamp Stamp `json:"stamp,omitzero"`
}

// Dir is the name of the copy's directory in the store; empty without a copy.
func (b Binary) Dir() string {
	dir, _, _ := strings.Cut(b.Kept, "/")
	return dir
}

// Stamp changes whenever a file does.
type Stamp struct {
	Inode  uint64    `json:"inode"`
	Size   int64     `json:"size"`
	Mod    time.Time `json:"mod"`
	Change time.Time `json:"change"`
}

func (s Stamp) same(o Stamp) bool {
	return s.Inode == o.Inode && s.Size == o.Size && s.Mod.Equal(o.Mod) && s.Change.Equal(o.Change)
}

func stampOf(path string) (Stamp, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return Stamp{}, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok || !fi.Mode().IsRegular() {
		return Stamp{}, fmt.Errorf("%s is not a regular file: %w", path, errdefs.ErrFailedPrecondition)
	}
	return Stamp{Inode: st.Ino, Size: fi.Size(), Mod: fi.ModTime(), Change: time.Unix(st.Ctim.Unix())}, nil
}

// Store keeps binaries below one directory. All methods may be called at the same
// time.
type Store struct {
	dir string

	mu    sync.Mutex
	good  map[string]Stamp    // by Kept: the content was read, and is right
	known map[identity]Binary // what was installed, and read
}

// identity is a probe.Identity that can be compared.
type identity struct {
	path        string
	dev, inode  uint64
	size        int64
	mod, change int64
}

func identityOf(id probe.Identity) identity {
	return identity{id.Path, id.Dev, id.Inode, id.Size, id.ModTime.UnixNano(), id.ChangeTime.UnixNano()}
}

// New returns a Store of the copies in dir, which it makes when it has to.
func New(dir string) *Store {
	return &Store{dir: dir, good: map[string]Stamp{}, known: map[identity]Binary{}}
}

// NoExec tells whether programs in dir cannot be run. The directory must exist.
func NoExec(dir string) (bool, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && st.Flags&unix.ST_NOEXEC != 0, err
	}
}

// Know tells of a binary that was read before. It saves reading it again, if it is
// still installed and its copy was not touched.
func (s *Store) Know(b Binary) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[identityOf(b.Identity)] = b
}

func (s *Store) recall(id probe.Identity) (Binary, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.known[identityOf(id)]
	return b, ok
}

// Hash identifies the installed binary and keeps nothing.
func (s *Store) Hash(id probe.Identity) (Binary, error) {
	if b, ok := s.recall(id); ok {
		return Binary{Path: b.Path, Identity: b.Identity, SHA256: b.SHA256}, nil
	}
	b, err := read(id)
	if err == nil {
		s.Know(b)
	}
	return b, err
}

func read(id probe.Identity) (Binary, error) {
	f, err := openAs(id)
	if err != nil {
		return Binary{}, err
	}
	defer f.Close()
	hash, err := hashOf(f)
	if err == nil {
		err = stillIs(id)
	}
	return Binary{Path: id.Path, Identity: id, SHA256: hash}, err
}

// Recall returns the copy of the installed binary with that identity, if it was
// made before and nobody touched it.
func (s *Store) Recall(id probe.Identity) (Binary, bool) {
	b, ok := s.recall(id)
	return b, ok && b.Kept != "" && s.Untouched(b)
}

// Copy keeps the installed binary with that identity. ErrChanged says that there
// is another one by now.
func (s *Store) Copy(id probe.Identity) (Binary, error) {
	b, err := s.Hash(id)
	if err != nil {
		return b, err
	}
	b.Kept = filepath.Join(Prefix+b.SHA256[:16], filepath.Base(id.Path))
	if b.Stamp, err = s.verified(b); err == nil {
		return b, nil
	}
	if b.Stamp, err = s.make(b, id); err != nil {
		return b, fmt.Errorf("copy binary %s: %w", id.Path, err)
	}
	return b, nil
}

// Abs is where the copy is, or the installed binary where there is none.
func (s *Store) Abs(b Binary) string {
	if b.Kept == "" {
		return b.Path
	}
	return filepath.Join(s.dir, b.Kept)
}

// Has tells whether a path is that of a copy.
func (s *Store) Has(path string) bool { return strings.HasPrefix(path, s.dir+"/"+Prefix) }

// Untouched tells whether the copy is there as it was when it was right.
func (s *Store) Untouched(b Binary) bool {
	now, err := stampOf(s.Abs(b))
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if good, ok := s.good[b.Kept]; ok {
		return now.same(good)
	}
	return now.same(b.Stamp)
}

// errDamaged is the answer of a copy that has another content than it should.
var errDamaged = errors.New("it has changed")

// Verify reads the copy. One that is damaged or gone is made again from the
// installed binary, if that is still the same; if not, there is none from then on.
func (s *Store) Verify(b Binary) error {
	if b.Kept == "" {
		return nil
	}
	_, bad := s.verified(b)
	if bad == nil {
		return nil
	}
	if !errors.Is(bad, errDamaged) && !errors.Is(bad, fs.ErrNotExist) {
		// Too many open files, or the like: that passes, and the copy may be all right.
		return fmt.Errorf("read the pod's kept binary: %w: %w", bad, errdefs.ErrUnavailable)
	}
	if err := s.makeAgain(b); err != nil {
		// What is damaged must not run; that it is gone is known how to deal with.
		_ = os.Remove(s.Abs(b))
		// Not of their classes: it is nothing that passes by itself.
		return fmt.Errorf("the pod's kept binary is damaged or missing (%v) and cannot be restored (%v): reinstall %s with sha256 %s, or recreate the pod: %w",
			bad, err, b.Path, b.SHA256, errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (s *Store) makeAgain(b Binary) error {
	now, err := probe.Identify(b.Path)
	if err != nil {
		return err
	}
	installed, err := s.Hash(now)
	if err == nil && installed.SHA256 != b.SHA256 {
		err = fmt.Errorf("%s now has sha256 %s", b.Path, installed.SHA256)
	}
	if err == nil {
		_, err = s.make(b, now)
	}
	return err
}

// Changed tells whether the installed binary of b is another one by now.
func Changed(b Binary) bool { return stillIs(b.Identity) != nil }

// verified reads the copy and remembers what it looks like when it is right.
func (s *Store) verified(b Binary) (Stamp, error) {
	path := s.Abs(b)
	stamp, err := stampOf(path)
	if err != nil {
		return stamp, err
	}
	f, err := os.Open(path)
	if err != nil {
		return stamp, err
	}
	defer f.Close()
	hash, err := hashOf(f)
	if err == nil && hash != b.SHA256 {
		err = fmt.Errorf("%s has sha256 %s: %w", path, hash, errDamaged)
	}
	if err != nil {
		return stamp, err
	}
	s.remember(b, stamp)
	return stamp, nil
}

func (s *Store) remember(b Binary, stamp Stamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.good[b.Kept] = stamp
}

// Forget ends what is remembered of the copies of a directory that was removed.
func (s *Store) Forget(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for kept := range s.good {
		if strings.HasPrefix(kept, dir+"/") {
			delete(s.good, kept)
		}
	}
}
