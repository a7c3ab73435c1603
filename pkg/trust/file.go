package trust

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// File is a file held by an O_PATH descriptor, with its resolved path. Open reopens the file through
// the descriptor, so that the checked file is used even if the path was changed since.
type File struct {
	// Hops are the directories from the root to the file, and the file.
	Hops []Hop
	file *os.File // nil if it does not exist
	err  error
}

// Find opens an absolute path. If it does not exist, Stat and Open return the error, and Hops has
// only the directories that exist.
func Find(name string) *File {
	w := &File{}
	if !path.IsAbs(name) {
		w.err = fmt.Errorf("%q must be an absolute path", name)
		return w
	}
	w.file, w.err = os.OpenFile(name, unix.O_PATH, 0)
	if w.err != nil {
		if above := path.Dir(name); errors.Is(w.err, fs.ErrNotExist) && above != name {
			of := Find(above)
			of.Close()
			w.Hops = of.Hops
		}
		return w
	}
	if w.Hops, w.err = hops(w.file); w.err != nil {
		w.Close()
		w.file = nil
	}
	return w
}

// hops returns the hops of an open file. Its own hop is read from the descriptor. The hops above it
// are read by path, because Check examines which users can replace entries there.
func hops(f *os.File) ([]Hop, error) {
	target, err := os.Readlink(fdPath(int(f.Fd()))) //nolint:gosec // a descriptor
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	all := []Hop{hopOf(target, info)}
	for at := target; path.Dir(at) != at; {
		at = path.Dir(at)
		if info, err = os.Lstat(at); err != nil {
			return nil, err
		}
		all = append(all, hopOf(at, info))
	}
	slices.Reverse(all)
	return all, nil
}

func hopOf(name string, info fs.FileInfo) Hop {
	h := Hop{Path: name, Mode: info.Mode()}
	if st, is := info.Sys().(*syscall.Stat_t); is {
		h.UID = st.Uid
	}
	return h
}

// fdPath returns a path to an open descriptor.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Stat describes the file.
func (w *File) Stat() (fs.FileInfo, error) {
	if w.err != nil {
		return nil, w.err
	}
	return w.file.Stat()
}

// Open opens the file for reading. It never blocks.
func (w *File) Open() (*os.File, error) {
	if w.err != nil {
		return nil, w.err
	}
	fd := int(w.file.Fd()) //nolint:gosec // a descriptor
	f, err := os.OpenFile(fdPath(fd), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		e.Path = w.file.Name()
	}
	return f, err
}

// Close closes the file.
func (w *File) Close() {
	if w.file != nil {
		w.file.Close()
	}
}

// Check returns a *Refused if the file must not be used for the purpose.
func (w *File) Check(p Purpose) error {
	if r, _ := checkHops(p, owners(), w.Hops); r != nil {
		return r
	}
	return nil
}

// owners returns the trusted owners: root and the user of this process.
func owners() map[uint32]bool {
	return map[uint32]bool{0: true, uint32(os.Geteuid()): true} //nolint:gosec // a uid has 32 bits
}

// Check returns a *Refused if the file or directory, or a directory above it, must not be used, and
// otherwise fs.ErrNotExist if it does not exist. Use Check for files that a library opens itself.
func Check(name string, p Purpose) error {
	w := Find(name)
	defer w.Close()
	return w.check(p)
}

// CheckDir is Check for a directory of which all entries are used.
func CheckDir(name string, p Purpose) error {
	w := Find(name)
	defer w.Close()
	if n := len(w.Hops); w.err == nil && w.Hops[n-1].Mode.IsDir() {
		w.Hops[n-1].Listed = true
	}
	return w.check(p)
}

func (w *File) check(p Purpose) error {
	if err := w.Check(p); err != nil {
		return err
	}
	return w.err
}

// Warnings returns the problems of a file that is used nevertheless.
func Warnings(name string, p Purpose) []string {
	w := Find(name)
	defer w.Close()
	_, found := checkHops(p, owners(), w.Hops)
	var texts []string
	for _, f := range found {
		texts = append(texts, f.Error())
	}
	return texts
}

// maxSize is the limit of ReadFile, in bytes.
const maxSize = 16 << 20

// ReadFile reads a regular file, if Check permits it for the purpose.
func ReadFile(name string, p Purpose) ([]byte, error) {
	w := Find(name)
	defer w.Close()
	if err := w.check(p); err != nil {
		return nil, err
	}
	if info, err := w.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := w.Open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(text) > maxSize {
		err = fmt.Errorf("%s has more than %d bytes", name, maxSize)
	}
	return text, err
}
