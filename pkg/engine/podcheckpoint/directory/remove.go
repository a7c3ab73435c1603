package directory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// removing begins the name of a checkpoint that is being removed.
const removing = ".removing-"

// Remove removes a checkpoint with its directory, or fails with ErrInUse. If it is interrupted,
// Finish removes the rest. A directory that holds something else is left as it is. waiting returns the
// checkpoints that restored pods still read; it is called under the lock, when no use can begin.
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
	if slices.ContainsFunc(all, func(one string) bool { return same(one, dir) }) {
		return fmt.Errorf("remove %s: a pod was restored from it whose containers are not all started; start them, or remove the pod: %w", dir, ErrInUse)
	}
	if _, err := manifest.Read(dir); err != nil {
		return err
	}
	others, err := manifest.Others(dir)
	if err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if len(others) > 0 {
		return fmt.Errorf("remove %s: it has something else, %q; move that away: %w", dir, others[0], errdefs.ErrFailedPrecondition)
	}
	renamed := filepath.Join(filepath.Dir(dir), removing+filepath.Base(dir))
	if err := empty(renamed); err != nil { // of an earlier one of that name
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

// same reports whether two paths lead to one directory. A pod may have been restored by another
// path.
func same(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// empty removes a directory that was renamed, if it exists.
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

// Discard removes an interrupted checkpoint from its directory, or fails with ErrInUse: a new one
// may be written there already. One that is whole stays.
func Discard(dir string) error {
	lock, err := locked(dir, unix.LOCK_EX)
	if errors.Is(err, ErrInUse) {
		return err
	}
	if err == nil {
		defer lock.Close()
	}
	return manifest.Discard(dir)
}

// Finish removes what interrupted removals left directly below parent, and directories that New
// made and nothing was written into, unless they are in use. It fails if others than root can
// change parent: they could have such names lead elsewhere.
func Finish(parent string) error {
	entries, err := manifest.Entries(parent)
	if err != nil {
		return fmt.Errorf("the directory of checkpoints: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), removing) && !ours(e.Name()) {
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
