package trust

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Way is how the kernel goes to a file, held open: what is opened by it is what was
// examined, whatever the path leads to by then.
type Way struct {
	// Hops are in the order in which they are met.
	Hops []Hop
	file *os.File // nil if there is none
	err  error
}

// maxLinks is how many symbolic links the kernel follows.
const maxLinks = 40

// Find goes to an absolute path. That there is nothing is told by Stat and Open.
func Find(name string) *Way {
	w := &Way{}
	if !path.IsAbs(name) {
		w.err = fmt.Errorf("%q must be an absolute path", name)
		return w
	}
	w.file, w.err = w.walk(name)
	// What the caller asked for, as the kernel would say it, wherever on the way it ended.
	if e, ok := errors.AsType[*fs.PathError](w.err); ok {
		w.err = &fs.PathError{Op: e.Op, Path: name, Err: e.Err}
	}
	return w
}

// step is a directory that the walk is in.
type step struct {
	fd     *os.File
	path   string
	sticky bool // and others can write into it
}

func (w *Way) walk(name string) (*os.File, error) {
	var steps []step
	defer func() {
		for _, s := range steps {
			s.fd.Close()
		}
	}()
	rest, links := strings.Split(name, "/"), 0
	enter := func(f *os.File, h Hop) {
		steps = append(steps, step{f, h.Path, h.Mode&fs.ModeSticky != 0 && h.Mode&0o022 != 0})
	}
	root := func() error {
		f, h, err := w.open(unix.AT_FDCWD, "/", "/")
		if err == nil {
			enter(f, h)
		}
		return err
	}
	if err := root(); err != nil {
		return nil, err
	}
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		here := steps[len(steps)-1]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(steps) > 1 {
				here.fd.Close()
				steps = steps[:len(steps)-1]
			}
			continue
		}
		f, h, err := w.open(int(here.fd.Fd()), part, path.Join(here.path, part)) //nolint:gosec // a descriptor
		if err != nil {
			return nil, err
		}
		w.Hops[len(w.Hops)-1].InSticky = here.sticky
		switch {
		case h.Mode&fs.ModeSymlink != 0:
			target, err := readlink(f)
			f.Close()
			if links++; err == nil && links > maxLinks {
				err = unix.ELOOP
			}
			if err != nil {
				return nil, &fs.PathError{Op: "readlink", Path: h.Path, Err: err}
			}
			rest = append(strings.Split(target, "/"), rest...)
			if path.IsAbs(target) {
				for _, s := range steps {
					s.fd.Close()
				}
				steps = nil
				if err := root(); err != nil {
					return nil, err
				}
			}
		case h.Mode.IsDir():
			enter(f, h)
		case len(rest) > 0:
			f.Close()
			return nil, &fs.PathError{Op: "open", Path: h.Path, Err: unix.ENOTDIR}
		default:
			return f, nil
		}
	}
	last := steps[len(steps)-1].fd
	steps = steps[:len(steps)-1]
	return last, nil
}

// open looks at an entry of a directory, without following it, and notes it.
func (w *Way) open(dir int, name, full string) (*os.File, Hop, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, Hop{}, &fs.PathError{Op: "open", Path: full, Err: err}
	}
	f := os.NewFile(uintptr(fd), full)
	var st unix.Stat_t
	info, err := f.Stat()
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err != nil {
		f.Close()
		return nil, Hop{}, &fs.PathError{Op: "stat", Path: full, Err: err}
	}
	h := Hop{Path: full, UID: st.Uid, GID: st.Gid, Mode: info.Mode()}
	if h.Mode&0o020 != 0 && h.Mode&fs.ModeSymlink == 0 {
		h.ACL = hasACL(fd)
	}
	if h.Mode.IsDir() && h.Mode&0o022 != 0 {
		h.Volume = isVolume(fd)
	}
	w.Hops = append(w.Hops, h)
	return f, h, nil
}

func readlink(f *os.File) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", buf) //nolint:gosec // a descriptor
	return string(buf[:max(n, 0)]), err
}

// hasACL says whether there is more than the mode shows, which then has the most
// that anybody is granted in the place of the group's permissions.
func hasACL(fd int) bool {
	n, err := unix.Getxattr(again(fd), "system.posix_acl_access", nil)
	return err == nil && n > 0
}

// isVolume recognizes a ConfigMap or Secret that the kubelet mounted: read-only, a
// mount of its own, and with the link by which the kubelet changes its content.
// That it is read-only is not enough: a unit's ProtectSystem= makes everything so
// for the daemon, and for nobody else.
func isVolume(fd int) bool {
	var sx unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &sx); err != nil || sx.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return false
	}
	var mount unix.Statfs_t
	if err := unix.Fstatfs(fd, &mount); err != nil || mount.Flags&unix.ST_RDONLY == 0 {
		return false
	}
	var data unix.Stat_t
	err := unix.Fstatat(fd, "..data", &data, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && data.Mode&unix.S_IFMT == unix.S_IFLNK && data.Uid == 0
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
	if r, _ := Judge(p, Owners(), w.Hops); r != nil {
		return r
	}
	return nil
}

// Owners are the users who may own what is trusted: root, whoever runs this, and
// those who could put another berth in the place of this one.
var Owners = sync.OnceValue(func() map[uint32]bool {
	users := map[uint32]bool{0: true, uint32(os.Geteuid()): true} //nolint:gosec // a uid has 32 bits
	self, err := os.Executable()
	if err != nil {
		return users
	}
	w := Find(self)
	defer w.Close()
	for _, h := range w.Hops {
		if h.Mode&fs.ModeSymlink == 0 {
			users[h.UID] = true
		}
	}
	return users
})

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
	w.list()
	return w.check(p)
}

func (w *Way) check(p Purpose) error {
	if err := w.Judge(p); err != nil {
		return err
	}
	return w.err
}

// list marks the directory that the way ends at.
func (w *Way) list() {
	if n := len(w.Hops); w.err == nil && w.Hops[n-1].Mode.IsDir() {
		w.Hops[n-1].Listed = true
	}
}

// Warnings are what is to be said of something that is used all the same.
func Warnings(name string, p Purpose) []string {
	w := Find(name)
	defer w.Close()
	_, found := Judge(p, Owners(), w.Hops)
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
