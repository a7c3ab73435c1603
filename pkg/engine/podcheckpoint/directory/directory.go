// Package directory manages the directories of pod checkpoints: their names, their removal, and the
// locks that protect a checkpoint in use from removal.
//
// A removal first renames the directory to a name that begins with a dot, so that a checkpoint
// never loses files under its own name. Finish removes the rest of an interrupted removal.
package directory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

const (
	// timeForm is the form of a checkpoint's start time in the name of its directory.
	timeForm = "20060102T150405.000Z"
	// maxOwner limits the pod's part of this name: a name has at most 255 bytes.
	maxOwner = 200
	// removing is the name prefix of a checkpoint during its removal.
	removing = ".removing-"
)

// New creates a directory below parent for a checkpoint of a pod, and parent if it does not exist.
// Only root can enter the directories that it creates.
func New(parent, namespace, name string, now time.Time) (string, error) {
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	dir := filepath.Join(parent, nameOf(namespace, name, now))
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%w; try again: %w", err, errdefs.ErrAlreadyExists)
	}
	return dir, err
}

// nameOf returns NAMESPACE_NAME_TIME without characters that have a meaning in a path. Pure.
func nameOf(namespace, name string, now time.Time) string {
	owner := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, namespace+"_"+name)
	owner = strings.TrimLeft(owner, ".")
	return owner[:min(len(owner), maxOwner)] + "_" + now.UTC().Format(timeForm)
}

// isOwnName reports whether a name has the form of nameOf. Pure.
func isOwnName(name string) bool {
	i := strings.LastIndexByte(name, '_')
	_, err := time.Parse(timeForm, name[i+1:])
	return i > 0 && err == nil
}

// ErrInUse is returned for a checkpoint that is being written, read, sent or removed. It is of the
// class errdefs.ErrFailedPrecondition.
var ErrInUse = fmt.Errorf("the checkpoint is in use; try again later: %w", errdefs.ErrFailedPrecondition)

// Use protects the checkpoint in dir from removal, by any process, until release is called. It
// fails with ErrInUse during a removal, so call it before reading the manifest. A directory that
// does not exist, or is on a filesystem without locks, cannot be removed by Remove either, and
// needs no lock.
func Use(dir string) (release func(), err error) {
	d, err := locked(dir, unix.LOCK_SH)
	if errors.Is(err, ErrInUse) {
		return nil, fmt.Errorf("use %s: %w", dir, err)
	}
	return func() { _ = d.Close() }, nil // Close accepts nil
}

// locked locks the directory at a path until the file is closed. It fails with ErrInUse if another
// lock conflicts.
func locked(dir string, how int) (*os.File, error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("%w; \"berth checkpoint list\" lists the checkpoints", err)
	}
	err = unix.Flock(int(d.Fd()), how|unix.LOCK_NB)
	// The directory may have been removed before the lock, and replaced by another.
	if errors.Is(err, unix.EWOULDBLOCK) || err == nil && !isAt(d, dir, os.Lstat) {
		err = ErrInUse
	}
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

// isAt reports whether d is the directory at path. If stat is os.Stat, path may be a link to the
// directory; if stat is os.Lstat, it may not.
func isAt(d *os.File, path string, stat func(string) (os.FileInfo, error)) bool {
	opened, err := d.Stat()
	if err != nil {
		return false
	}
	now, err := stat(path)
	return err == nil && os.SameFile(opened, now)
}

// Remove removes a checkpoint with its directory, or fails with ErrInUse. If it is interrupted,
// Finish removes the rest. A directory with other files is left unchanged. waiting returns the
// checkpoints that restored pods still read; Remove calls it under the lock, when no use can begin.
func Remove(dir string, waiting func() ([]string, error)) error {
	dir = filepath.Clean(dir)
	lock, err := locked(dir, unix.LOCK_EX)
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	defer lock.Close()
	all, err := waiting()
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if slices.ContainsFunc(all, func(one string) bool { return isAt(lock, one, os.Stat) }) {
		return fmt.Errorf("remove %s: a restored pod still reads it; start all containers of that pod, or remove the pod: %w", dir, ErrInUse)
	}
	if _, err := manifest.Read(dir); err != nil {
		return err
	}
	others, err := manifest.Others(dir)
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if len(others) > 0 {
		return fmt.Errorf("remove %s: it has %q, which is not part of a checkpoint; move that away: %w", dir, others[0], errdefs.ErrFailedPrecondition)
	}
	renamed := filepath.Join(filepath.Dir(dir), removing+filepath.Base(dir))
	if err := empty(renamed); err != nil { // left by an interrupted removal
		return err
	}
	if err := os.Rename(dir, renamed); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	failpoint.Hit(failpoint.PodCheckpointRenamed)
	return empty(renamed)
}

func empty(renamed string) error {
	if _, err := os.Lstat(renamed); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := manifest.Remove(renamed); err != nil {
		return fmt.Errorf("remove %s: %w", renamed, err)
	}
	failpoint.Hit(failpoint.PodCheckpointEmptied)
	return atomicfile.Remove(renamed)
}

// Discard removes an interrupted checkpoint from its directory, or fails with ErrInUse, because a
// new checkpoint may be written there already. A complete checkpoint stays.
func Discard(dir string) error {
	lock, err := locked(dir, unix.LOCK_EX)
	if errors.Is(err, ErrInUse) {
		return err
	}
	if err == nil {
		defer lock.Close()
	}
	if _, err := os.Lstat(filepath.Join(dir, manifest.Name)); err == nil {
		return nil
	}
	return manifest.Remove(dir)
}

// Finish removes the rest of interrupted removals directly below parent, and empty directories that
// New created, unless they are in use. It fails if users other than root can change parent: they
// could replace such a directory by a link.
func Finish(parent string) error {
	entries, err := manifest.Entries(parent)
	if err != nil {
		return fmt.Errorf("the directory of checkpoints: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), removing) && !isOwnName(e.Name()) {
			continue
		}
		if err := finish(filepath.Join(parent, e.Name())); err != nil && !errors.Is(err, ErrInUse) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func finish(dir string) error {
	lock, err := locked(dir, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	if strings.HasPrefix(filepath.Base(dir), removing) {
		return empty(dir)
	}
	if err := os.Remove(dir); !errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}
