// Package keep holds copies of the runtime binaries that pods were made with, and of
// their companions, by their content, so that whatever happens to an installed binary
// happens to new pods only.
//
// A copy is at <dir>/runtime-<hash>/<name>, under the name of the installed
// binary: programs look at how they are called. Its companions are beside it, as they
// are beside the installed one, and the hash is that of all. They are copies and no hard links,
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
	"slices"
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
	// Stamps are those of the copy, the executable first and then its companions in
	// their order, when the content was last known to be right.
	Stamps []Stamp `json:"stamps,omitempty"`
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
	good  map[string][]Stamp // by Kept: the content was read, and is right
	known map[string]Binary  // by key: what was installed, and read
}

// key is equal for identities that are the same.
func key(id probe.Identity) string {
	k := fmt.Sprintf("%q %d %d %d %d %d", id.Path, id.Dev, id.Inode, id.Size, id.ModTime.UnixNano(), id.ChangeTime.UnixNano())
	for _, c := range id.Companions {
		k += " " + key(c.Identity)
	}
	return k
}

// New returns a Store of the copies in dir, which it makes when it has to.
func New(dir string) *Store {
	return &Store{dir: dir, good: map[string][]Stamp{}, known: map[string]Binary{}}
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
	s.known[key(b.Identity)] = b
}

func (s *Store) recall(id probe.Identity) (Binary, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.known[key(id)]
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
	if err := stillIs(id); err != nil {
		return Binary{}, err
	}
	hash, err := id.SHA256()
	if err == nil {
		err = stillIs(id)
	}
	return Binary{Path: id.Path, Identity: id, SHA256: hash}, err
}

// Recall returns the copy of the installed binary with that identity, or
// errdefs.ErrNotFound unless it was made before and is untouched.
func (s *Store) Recall(id probe.Identity) (Binary, error) {
	b, ok := s.recall(id)
	if !ok || b.Kept == "" || !s.Untouched(b) {
		return b, errdefs.ErrNotFound
	}
	return b, nil
}

// Copy keeps the installed binary with that identity. ErrChanged says that there
// is another one by now.
func (s *Store) Copy(id probe.Identity) (Binary, error) {
	b, err := s.Hash(id)
	if err != nil {
		return b, err
	}
	b.Kept = filepath.Join(Prefix+b.SHA256[:16], filepath.Base(id.Path))
	if b.Stamps, err = s.verified(b); err == nil {
		return b, nil
	}
	if b.Stamps, err = s.make(b, id); err != nil {
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
	now, err := s.stamps(b)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	good, ok := s.good[b.Kept]
	if !ok {
		good = b.Stamps
	}
	return slices.EqualFunc(now, good, Stamp.same)
}

// files are those of the copy, the executable first.
func (s *Store) files(b Binary) []probe.File {
	files := []probe.File{{Path: s.Abs(b)}}
	for _, c := range b.Identity.Companions {
		files = append(files, probe.File{Name: c.Name, Path: filepath.Join(filepath.Dir(s.Abs(b)), c.Name)})
	}
	return files
}

func (s *Store) stamps(b Binary) (all []Stamp, _ error) {
	for _, f := range s.files(b) {
		stamp, err := stampOf(f.Path)
		if err != nil {
			return nil, err
		}
		all = append(all, stamp)
	}
	return all, nil
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
	now, err := b.Identity.Again()
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
func (s *Store) verified(b Binary) ([]Stamp, error) {
	stamps, err := s.stamps(b)
	if err != nil {
		return nil, err
	}
	hash, err := probe.Sum(s.files(b))
	if err == nil && hash != b.SHA256 {
		err = fmt.Errorf("%s has sha256 %s: %w", s.Abs(b), hash, errDamaged)
	}
	if err != nil {
		return nil, err
	}
	s.remember(b, stamps)
	return stamps, nil
}

func (s *Store) remember(b Binary, stamps []Stamp) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.good[b.Kept] = stamps
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
