// Package keep stores copies of the runtime binaries that pods were created with, and of their
// companions, by content hash. A change of an installed binary therefore affects new pods only.
//
// A copy is at <dir>/runtime-<hash>/<name>, under the name of the installed binary, because
// programs may depend on their own name. Its companions are in the same directory, as with the
// installed binary, and the hash covers all of them. Copies are not hard links, which would change
// with a binary that is overwritten. The interpreter of a script and the libraries of a dynamically
// linked program are not kept.
//
// The Store removes only damaged copies, since it does not record which copies are in use. The
// caller that removes copies must not do so while Copy or Verify may be creating one.
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

// Prefix begins the names of directories of copies, PartialPrefix those of unfinished copies.
const (
	Prefix        = "runtime-"
	PartialPrefix = ".new-"
)

// ErrChanged reports that the installed binary is no longer the one that was requested. The
// caller must probe it again.
var ErrChanged = fmt.Errorf("the binary changed while it was copied: %w", errdefs.ErrUnavailable)

// Binary is a runtime program. Its JSON form is stored with every pod that runs
// on it: fields may be added, never renamed.
type Binary struct {
	// Path and Identity are those of the installed binary when it was read.
	Path     string         `json:"path"`
	Identity probe.Identity `json:"identity"`
	SHA256   string         `json:"sha256"`
	// Version is the version that the program reported.
	Version string `json:"version,omitempty"`
	// Kept is the copy's path below the store's directory. It is empty without a copy, and Path is
	// run then.
	Kept string `json:"kept,omitempty"`
	// Stamps are the stamps of the copy's files when their content was last verified: the
	// executable first, then the companions in order.
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

// Store keeps binaries below one directory. It is safe for concurrent use.
type Store struct {
	dir string

	mu    sync.Mutex
	good  map[string][]Stamp // by Kept: stamps of verified content
	known map[string]Binary  // by key: installed binaries that were read
}

// key is the same for equal identities.
func key(id probe.Identity) string {
	k := fmt.Sprintf("%q %d %d %d %d %d", id.Path, id.Dev, id.Inode, id.Size, id.ModTime.UnixNano(), id.ChangeTime.UnixNano())
	for _, c := range id.Companions {
		k += " " + key(c.Identity)
	}
	return k
}

// New returns a Store of the copies in dir, which must exist.
func New(dir string) *Store {
	return &Store{dir: dir, good: map[string][]Stamp{}, known: map[string]Binary{}}
}

// NoExec reports whether the filesystem of dir is mounted noexec. The directory must exist.
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

// Record makes b known to the store: it is not read again while it is installed and its copy is
// untouched.
func (s *Store) Record(b Binary) {
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

// Hash returns the installed binary with its hash, without a copy.
func (s *Store) Hash(id probe.Identity) (Binary, error) {
	if b, ok := s.recall(id); ok {
		return Binary{Path: b.Path, Identity: b.Identity, SHA256: b.SHA256}, nil
	}
	b, err := read(id)
	if err == nil {
		s.Record(b)
	}
	return b, err
}

func read(id probe.Identity) (Binary, error) {
	if err := checkUnchanged(id); err != nil {
		return Binary{}, err
	}
	hash, err := id.SHA256()
	if err == nil {
		err = checkUnchanged(id)
	}
	return Binary{Path: id.Path, Identity: id, SHA256: hash}, err
}

// Recall returns the copy of the installed binary with that identity, or errdefs.ErrNotFound if the
// copy was touched or not passed to Record in this process: the directory is not searched.
func (s *Store) Recall(id probe.Identity) (Binary, error) {
	b, ok := s.recall(id)
	if !ok || b.Kept == "" || !s.Untouched(b) {
		return b, errdefs.ErrNotFound
	}
	return b, nil
}

// Copy keeps the installed binary with that identity. The error is ErrChanged if it was replaced.
func (s *Store) Copy(id probe.Identity) (Binary, error) {
	b, err := s.Hash(id)
	if err != nil {
		return b, err
	}
	b.Kept = filepath.Join(Prefix+b.SHA256[:16], filepath.Base(id.Path))
	if b.Stamps, err = s.verified(b); err == nil {
		return b, nil
	}
	if b.Stamps, err = s.create(b, id); err != nil {
		return b, fmt.Errorf("copy binary %s: %w", id.Path, err)
	}
	return b, nil
}

// Abs is the absolute path of the copy, or of the installed binary without one.
func (s *Store) Abs(b Binary) string {
	if b.Kept == "" {
		return b.Path
	}
	return filepath.Join(s.dir, b.Kept)
}

// Has reports whether path is in the directory of a copy.
func (s *Store) Has(path string) bool { return strings.HasPrefix(path, s.dir+"/"+Prefix) }

// Untouched reports whether the copy has the stamps of its last verification.
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

// files returns the files of the copy, the executable first.
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

// errDamaged reports a copy with unexpected content.
var errDamaged = errors.New("it has changed")

// Verify reads the copy. A damaged or missing copy is restored from the installed binary if that is
// unchanged; otherwise it is removed.
func (s *Store) Verify(b Binary) error {
	if b.Kept == "" {
		return nil
	}
	_, bad := s.verified(b)
	if bad == nil {
		return nil
	}
	if !errors.Is(bad, errDamaged) && !errors.Is(bad, fs.ErrNotExist) {
		// A temporary error, such as too many open files: the copy may be intact.
		return fmt.Errorf("read the pod's kept binary: %w: %w", bad, errdefs.ErrUnavailable)
	}
	if err := s.restore(b); err != nil {
		// A damaged copy must not run. Callers handle a missing one.
		_ = os.Remove(s.Abs(b))
		// The error does not have the classes of its causes, because a retry does not help.
		return fmt.Errorf("the pod's kept binary is damaged or missing (%v) and cannot be restored (%v): reinstall %s with sha256 %s, or recreate the pod: %w",
			bad, err, b.Path, b.SHA256, errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (s *Store) restore(b Binary) error {
	now, err := b.Identity.Again()
	if err != nil {
		return err
	}
	installed, err := s.Hash(now)
	if err == nil && installed.SHA256 != b.SHA256 {
		err = fmt.Errorf("%s now has sha256 %s", b.Path, installed.SHA256)
	}
	if err == nil {
		_, err = s.create(b, now)
	}
	return err
}

// Changed reports whether another binary than b is installed by now.
func Changed(b Binary) bool { return checkUnchanged(b.Identity) != nil }

// verified reads the copy, and remembers its stamps if the content is right.
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

// Forget drops the remembered stamps of copies in a directory that was removed.
func (s *Store) Forget(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for kept := range s.good {
		if strings.HasPrefix(kept, dir+"/") {
			delete(s.good, kept)
		}
	}
}
