// Package directory manages the directories of pod checkpoints: their names, their removal, and the
// locks that protect a checkpoint in use from removal.
//
// A removal first renames the directory to a name that begins with a dot, so that a checkpoint
// never loses files under its own name. Finish removes the rest of an interrupted removal.
//
// An operator can give a checkpoint a name, which is a link to it.
package directory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
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
	// namesDir has the names of the checkpoints beside it, as relative links.
	namesDir = "names"
)

// Path returns the path of a new checkpoint of a pod below parent. It fails if Name would refuse to
// call it as. It creates parent, which only root can enter, if it does not exist.
func Path(parent, namespace, pod, as string, replace bool, now time.Time) (string, error) {
	if err := free(parent, as, replace); err != nil && (as != "" || replace) {
		return "", err
	}
	return filepath.Join(parent, nameOf(namespace, pod, now)), os.MkdirAll(filepath.Join(parent, namesDir), 0o700)
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
	d, err := locked(dir, unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, ErrInUse) {
		return nil, fmt.Errorf("use %s: %w", dir, err)
	}
	return func() { _ = d.Close() }, nil // Close accepts nil
}

// locked locks the directory at a path until the file is closed. With LOCK_NB, it fails with ErrInUse
// if another lock conflicts.
func locked(dir string, how int) (*os.File, error) {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("%w; \"berth checkpoint list\" lists the checkpoints", err)
	}
	err = unix.Flock(int(d.Fd()), how)
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
	lock, err := locked(dir, unix.LOCK_EX|unix.LOCK_NB)
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
	err = empty(renamed)
	if isOwnName(filepath.Base(dir)) { // others have no name, and may be where users can write
		err = errors.Join(err, cleanNames(filepath.Dir(dir)))
	}
	return err
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

// validName matches names. The first part has no dot or colon, as a registry has.
var validName = regexp.MustCompile(`^[a-z0-9]([a-z0-9_-]*[a-z0-9])?(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*$`)

// Names returns the names of the directories below parent, and the links that an interrupted Name
// or Remove has left. Only the last element of a link counts, so that no link leads out of parent.
// It fails if users other than root can change the names.
func Names(parent string) (names map[string]string, left []string, err error) {
	entries, err := manifest.Entries(filepath.Join(parent, namesDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	names = map[string]string{}
	for _, e := range entries {
		link := filepath.Join(parent, namesDir, e.Name())
		to, _ := os.Readlink(link) // empty for a file
		dir := filepath.Join(parent, filepath.Base(to))
		info, err := os.Lstat(dir)
		switch {
		case !isOwnName(filepath.Base(to)): // not made by Name
		case err == nil && info.IsDir() && !strings.HasPrefix(e.Name(), "."):
			names[dir] = strings.ReplaceAll(e.Name(), ":", "/")
		default:
			left = append(left, link)
		}
	}
	return names, left, nil
}

// Resolve returns the directory of the checkpoint with a name below parent.
func Resolve(parent, name string) (string, error) {
	if len(name) > 200 || !validName.MatchString(name) {
		return "", fmt.Errorf("%.300q cannot be a checkpoint's name; use at most 200 of a-z, 0-9, \".\", \"_\", \"-\" and \"/\", each part from letter or digit to letter or digit, and no dot in the first part: %w", name, errdefs.ErrInvalidArgument)
	}
	names, _, err := Names(parent)
	for dir, one := range names {
		if one == name {
			return dir, nil
		}
	}
	if err == nil {
		err = fmt.Errorf("no checkpoint has the name %q; \"berth checkpoint list\" lists the checkpoints: %w", name, errdefs.ErrNotFound)
	}
	return "", err
}

// free fails unless a checkpoint below parent may get the name.
func free(parent, name string, replace bool) error {
	dir, err := Resolve(parent, name)
	if errdefs.IsNotFound(err) || err == nil && replace {
		return nil
	}
	return cmp.Or(err, fmt.Errorf("%s has the name %q; choose another, or remove that checkpoint: %w", dir, name, errdefs.ErrAlreadyExists))
}

// Name names the complete checkpoint in dir, a path from Path. With replace, another checkpoint may
// lose the name.
func Name(dir, name string, replace bool) error {
	use, err := locked(dir, unix.LOCK_SH) // until prune can see the name
	if err != nil {
		return err
	}
	defer use.Close()
	parent, link := filepath.Dir(dir), strings.ReplaceAll(name, "/", ":") // no checkpoint's name has a colon
	changes, err := locked(filepath.Join(parent, namesDir), unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer changes.Close()
	if err := free(parent, name, replace); err != nil {
		return fmt.Errorf("the checkpoint %s is complete, but has no name: %w", dir, err)
	}
	failpoint.Hit(failpoint.PodCheckpointUnnamed)
	return errors.Join(atomicfile.SyncDir(parent), atomicfile.Symlink("../"+filepath.Base(dir), filepath.Join(parent, namesDir, link)))
}

// cleanNames removes names without a checkpoint, and what a killed Name has left.
func cleanNames(parent string) error {
	changes, err := locked(filepath.Join(parent, namesDir), unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer changes.Close()
	_, left, err := Names(parent)
	for _, link := range left {
		err = errors.Join(err, atomicfile.Remove(link))
	}
	return err
}

// Discard removes an interrupted checkpoint from its directory, or fails with ErrInUse, because a
// new checkpoint may be written there already. A complete checkpoint stays.
func Discard(dir string) error {
	lock, err := locked(dir, unix.LOCK_EX|unix.LOCK_NB)
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

// Finish removes the rest of interrupted removals directly below parent, names without a checkpoint,
// and empty directories at paths from Path, unless they are in use. It fails if users other than root can change parent: they
// could replace such a directory by a link.
func Finish(parent string) error {
	entries, err := manifest.Entries(parent)
	if err != nil {
		return fmt.Errorf("the directory of checkpoints: %w", err)
	}
	errs := []error{cleanNames(parent)}
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
	lock, err := locked(dir, unix.LOCK_EX|unix.LOCK_NB)
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
