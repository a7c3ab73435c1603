package installer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// original is a file of the node before it was changed.
type original struct {
	Path string `json:"path"`
	// Absent is a file that did not exist. Others are regular files, or links.
	Absent  bool        `json:"absent,omitempty"`
	Link    string      `json:"link,omitempty"`
	Content []byte      `json:"content,omitempty"`
	Mode    fs.FileMode `json:"mode,omitempty"`
	UID     int         `json:"uid,omitempty"`
	GID     int         `json:"gid,omitempty"`
	// Made are directories above it that did not exist, the deepest first.
	Made []string `json:"made,omitempty"`
	// Ours are digests of what was written there since. Anything else is somebody's edit.
	Ours []string `json:"ours,omitempty"`
}

// writes notes what is about to be written.
func (o *original) writes(content []byte) {
	if d := digest(content); !slices.Contains(o.Ours, d) {
		o.Ours = append(o.Ours, d)
	}
}

// keptSuffix is that of copies of files that somebody has edited. berth does not read them.
const keptSuffix = ".kept"

// keep copies what somebody has written to a file of ours, before that is replaced or removed.
func (i *Installer) keep(o original) error {
	path := i.path(o.Path)
	info, err := os.Lstat(path)
	if err != nil || len(o.Ours) == 0 || !info.Mode().IsRegular() {
		return nil //nolint:nilerr // what cannot be looked at cannot be replaced either
	}
	now, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if bytes.Equal(now, o.Content) || slices.Contains(o.Ours, digest(now)) {
		return nil
	}
	log.L.WithField("path", o.Path).WithField("kept", o.Path+keptSuffix).Warn("File was edited since it was installed; keeping that beside it")
	return atomicfile.Write(path+keptSuffix, now, info.Mode().Perm(), atomicfile.Durable)
}

// snapshot reads a file.
func (i *Installer) snapshot(path string) (original, error) {
	o := original{Path: path}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(i.path(dir)); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return o, err
		}
		o.Made = append(o.Made, dir)
	}
	info, err := os.Lstat(i.path(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		o.Absent = true
		return o, nil
	case err != nil:
		return o, err
	case info.Mode()&fs.ModeSymlink != 0:
		o.Link, err = os.Readlink(i.path(path))
		return o, err
	case !info.Mode().IsRegular():
		return o, fmt.Errorf("%s is not a regular file", path)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		o.UID, o.GID = int(st.Uid), int(st.Gid)
	}
	o.Mode = info.Mode().Perm()
	o.Content, err = os.ReadFile(i.path(path))
	return o, err
}

// put writes a file of the node, and makes directories above it.
func (i *Installer) put(path string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(i.path(path)), 0o755); err != nil {
		return err
	}
	if old, err := os.ReadFile(i.path(path)); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return atomicfile.Write(i.path(path), content, mode, atomicfile.Durable)
}

// replace writes a file whose original is saved.
func (i *Installer) replace(o original, content []byte) error {
	if err := i.keep(o); err != nil {
		return err
	}
	return i.put(o.Path, content, 0o644)
}

// restore leaves a file as it was.
func (i *Installer) restore(o original) error {
	if err := i.keep(o); err != nil {
		return err
	}
	path := i.path(o.Path)
	// An interrupted write may have left its new file.
	if err := atomicfile.Remove(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")); err != nil && !errors.Is(err, syscall.ENOTDIR) {
		return err
	}
	switch {
	case o.Absent:
		if err := atomicfile.Remove(path); err != nil && !errors.Is(err, syscall.ENOTDIR) {
			return err
		}
	case o.Link != "":
		if now, err := os.Readlink(path); err == nil && now == o.Link {
			return nil
		}
		if err := relink(path, o.Link); err != nil {
			return err
		}
	default:
		if err := i.put(o.Path, o.Content, o.Mode); err != nil {
			return err
		}
		if err := errors.Join(os.Chown(path, o.UID, o.GID), os.Chmod(path, o.Mode)); err != nil {
			return err
		}
	}
	for _, dir := range o.Made {
		if err := os.Remove(i.path(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil //nolint:nilerr // somebody has put something there
		}
	}
	return nil
}

// relink makes a symbolic link, in the place of another.
func relink(path, target string) error {
	fresh := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, fresh); err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(path))
}

// fileSet is files with their content, of which originals are saved.
type fileSet struct {
	// content is by path.
	content map[string][]byte
	// left are paths that others have taken over: what is there stays.
	left map[string]bool
	// half is called after the first file.
	half func()
}

// prepare adds the originals of files that are new to those that were saved.
func (f fileSet) prepare(i *Installer, saved []original) ([]original, error) {
	for path := range f.sorted() {
		n := slices.IndexFunc(saved, func(o original) bool { return o.Path == path })
		if n < 0 {
			o, err := i.snapshot(path)
			if err != nil {
				return nil, err
			}
			n = len(saved)
			saved = append(saved, o)
		}
		saved[n].writes(f.content[path])
	}
	return saved, nil
}

// do writes the files, and restores those that do not belong to the set any more.
func (f fileSet) do(i *Installer, saved []original) error {
	for path, n := range f.sorted() {
		if n == 1 && f.half != nil {
			f.half()
		}
		if f.left[path] {
			continue
		}
		o := slices.IndexFunc(saved, func(o original) bool { return o.Path == path })
		if err := i.replace(saved[o], f.content[path]); err != nil {
			return err
		}
	}
	for _, o := range saved {
		if _, wanted := f.content[o.Path]; wanted || f.left[o.Path] {
			continue
		}
		if err := i.restore(o); err != nil {
			return err
		}
	}
	return nil
}

// undoFiles restores the originals, last first.
func (i *Installer) undoFiles(saved []original) error {
	for _, o := range slices.Backward(saved) {
		if err := i.restore(o); err != nil {
			return err
		}
	}
	return nil
}

// sorted yields paths in lexical order, and how many came before.
func (f fileSet) sorted() func(yield func(string, int) bool) {
	paths := make([]string, 0, len(f.content))
	for path := range f.content {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return func(yield func(string, int) bool) {
		for n, path := range paths {
			if !yield(path, n) {
				return
			}
		}
	}
}

// bring copies all of a directory, or a file under that name, to a directory of the node,
// which others see as a whole or not at all. Everything becomes root's, and nobody else may write it.
// change may change the text of files.
func (i *Installer) bring(source, name, to string, change func(name string, text []byte) []byte, half func()) error {
	target := i.path(to)
	if _, err := os.Lstat(target); err == nil {
		return nil
	}
	fresh := filepath.Join(filepath.Dir(target), "."+filepath.Base(target)+".new")
	if err := os.RemoveAll(fresh); err != nil {
		return err
	}
	if err := os.MkdirAll(fresh, 0o755); err != nil {
		return err
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		err = copyFile(source, filepath.Join(fresh, name), info, nil)
	} else {
		err = filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return copyEntry(source, path, fresh, entry, change)
		})
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(fresh))
	}
	half()
	if err := os.Rename(fresh, target); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(target))
}

func copyEntry(source, path, fresh string, entry fs.DirEntry, change func(string, []byte) []byte) error {
	name, err := filepath.Rel(source, path)
	if err != nil || name == "." {
		return err
	}
	info, err := entry.Info()
	if err != nil {
		return err
	}
	to := filepath.Join(fresh, name)
	switch {
	case info.IsDir():
		return os.Mkdir(to, 0o755)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if change != nil {
			target = string(change("", []byte(target)))
		}
		return os.Symlink(target, to)
	case info.Mode().IsRegular():
		var edit func([]byte) []byte
		if change != nil && strings.HasSuffix(name, ".toml") {
			edit = func(text []byte) []byte { return change(name, text) }
		}
		return copyFile(path, to, info, edit)
	}
	return fmt.Errorf("%s is neither a file, a directory nor a link", path)
}

func copyFile(from, to string, info fs.FileInfo, edit func([]byte) []byte) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	mode := 0o644 | info.Mode().Perm()&0o111
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = atomicfile.Explain(errors.Join(err, out.Close())) }()
	if edit != nil {
		text, err := io.ReadAll(in)
		if err != nil {
			return err
		}
		_, err = out.Write(edit(text))
		return errors.Join(err, out.Chmod(mode), out.Sync())
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Chmod(mode), out.Sync())
}
