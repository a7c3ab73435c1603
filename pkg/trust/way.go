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

// Way is a file held open, and where it really is: what is opened by it is what was examined,
// whatever the path leads to by then.
type Way struct {
	// Hops are the directories above the file, from the root on, and the file.
	Hops []Hop
	file *os.File // nil if there is none
	err  error
}

// Find goes to an absolute path. Stat and Open return the error if it does not exist; Hops are
// then those of the directories that do.
func Find(name string) *Way {
	w := &Way{}
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

// hops are those of what is open. Its own are the descriptor's; only who owns a directory above
// can replace the next one.
func hops(f *os.File) ([]Hop, error) {
	target, err := os.Readlink(again(int(f.Fd()))) //nolint:gosec // a descriptor
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

// again is a path to what is open.
func again(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Stat is about what the way ends at.
func (w *Way) Stat() (fs.FileInfo, error) {
	if w.err != nil {
		return nil, w.err
	}
	return w.file.Stat()
}

// Open opens what the way ends at for reading. Nothing is waited for.
func (w *Way) Open() (*os.File, error) {
	if w.err != nil {
		return nil, w.err
	}
	fd := int(w.file.Fd()) //nolint:gosec // a descriptor
	f, err := os.OpenFile(again(fd), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		e.Path = w.file.Name()
	}
	return f, err
}

// Close lets go of what is held open.
func (w *Way) Close() {
	if w.file != nil {
		w.file.Close()
	}
}

// Judge returns a *Refused if what was found must not be used for that.
func (w *Way) Judge(p Purpose) error {
	if r, _ := judge(p, owners(), w.Hops); r != nil {
		return r
	}
	return nil
}

// owners may own what is trusted: root, and the user whom this runs as.
func owners() map[uint32]bool {
	return map[uint32]bool{0: true, uint32(os.Geteuid()): true} //nolint:gosec // a uid has 32 bits
}

// Check returns a *Refused for a file or directory that must not be used, and an
// error of class NotFound for one that does not exist in directories of root's. It is
// for what a library is about to read by itself.
func Check(name string, p Purpose) error {
	w := Find(name)
	defer w.Close()
	return w.check(p)
}

// CheckDir is Check for a directory of which all entries count.
func CheckDir(name string, p Purpose) error {
	w := Find(name)
	defer w.Close()
	if n := len(w.Hops); w.err == nil && w.Hops[n-1].Mode.IsDir() {
		w.Hops[n-1].Listed = true
	}
	return w.check(p)
}

func (w *Way) check(p Purpose) error {
	if err := w.Judge(p); err != nil {
		return err
	}
	return w.err
}

// Warnings are what is to be said of something that is used all the same.
func Warnings(name string, p Purpose) []string {
	w := Find(name)
	defer w.Close()
	_, found := judge(p, owners(), w.Hops)
	var texts []string
	for _, f := range found {
		texts = append(texts, f.Error())
	}
	return texts
}

// maxSize bounds what ReadFile reads, in bytes.
const maxSize = 16 << 20

// ReadFile reads a regular file that may be used for that.
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
