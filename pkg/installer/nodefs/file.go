package nodefs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// Original is a file of the node before it was changed.
type Original struct {
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

// Writes notes what is about to be written.
func (o *Original) Writes(content []byte) {
	if d := Digest(content); !slices.Contains(o.Ours, d) {
		o.Ours = append(o.Ours, d)
	}
}

// KeptSuffix is that of copies of files that somebody has edited. berth does not read them.
const KeptSuffix = ".kept"

// keep copies what somebody has written to a file of ours, before that is replaced or removed.
func (r Root) keep(o Original) error {
	path := r.Path(o.Path)
	info, err := os.Lstat(path)
	if err != nil || len(o.Ours) == 0 || !info.Mode().IsRegular() {
		return nil //nolint:nilerr // what cannot be looked at cannot be replaced either
	}
	now, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if bytes.Equal(now, o.Content) || slices.Contains(o.Ours, Digest(now)) {
		return nil
	}
	kept := o.Path + KeptSuffix
	for n := 2; ; n++ { // of an earlier edit
		text, err := os.ReadFile(r.Path(kept))
		if errors.Is(err, fs.ErrNotExist) || err == nil && bytes.Equal(text, now) {
			break
		}
		if err != nil {
			return err
		}
		kept = fmt.Sprintf("%s%s.%d", o.Path, KeptSuffix, n)
	}
	log.L.WithField("path", o.Path).WithField("kept", kept).Warn("File was edited since it was installed; keeping that beside it")
	return atomicfile.Write(r.Path(kept), now, info.Mode().Perm(), atomicfile.Durable)
}

// Snapshot reads a file.
func (r Root) Snapshot(path string) (Original, error) {
	o := Original{Path: path}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(r.Path(dir)); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return o, err
		}
		o.Made = append(o.Made, dir)
	}
	info, err := os.Lstat(r.Path(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		o.Absent = true
		return o, nil
	case err != nil:
		return o, err
	case info.Mode()&fs.ModeSymlink != 0:
		o.Link, err = os.Readlink(r.Path(path))
		return o, err
	case !info.Mode().IsRegular():
		return o, fmt.Errorf("%s is not a regular file", path)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		o.UID, o.GID = int(st.Uid), int(st.Gid)
	}
	o.Mode = info.Mode().Perm()
	o.Content, err = os.ReadFile(r.Path(path))
	return o, err
}

// Put writes a file of the node, and makes directories above it.
func (r Root) Put(path string, content []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(r.Path(path)), 0o755); err != nil {
		return err
	}
	if old, err := os.ReadFile(r.Path(path)); err == nil && bytes.Equal(old, content) {
		return nil
	}
	return atomicfile.Write(r.Path(path), content, mode, atomicfile.Durable)
}

// Replace writes a file whose original is saved.
func (r Root) Replace(o Original, content []byte) error {
	if err := r.keep(o); err != nil {
		return err
	}
	return r.Put(o.Path, content, 0o644)
}

// Restore leaves a file as it was.
func (r Root) Restore(o Original) error {
	if err := r.keep(o); err != nil {
		return err
	}
	path := r.Path(o.Path)
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
		if err := Relink(path, o.Link); err != nil {
			return err
		}
	default:
		if err := r.Put(o.Path, o.Content, o.Mode); err != nil {
			return err
		}
		if err := errors.Join(os.Chown(path, o.UID, o.GID), os.Chmod(path, o.Mode)); err != nil {
			return err
		}
	}
	for _, dir := range o.Made {
		if err := os.Remove(r.Path(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil //nolint:nilerr // somebody has put something there
		}
	}
	return nil
}

// Relink makes a symbolic link, in the place of another.
func Relink(path, target string) error {
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

// RestoreAll restores originals, last first.
func (r Root) RestoreAll(saved []Original) error {
	for _, o := range slices.Backward(saved) {
		if err := r.Restore(o); err != nil {
			return err
		}
	}
	return nil
}
