package retention

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
)

// going is what the name of a checkpoint begins with that is being removed.
const going = ".removing-"

// Remove removes a checkpoint with its directory, or fails with ErrInUse. It is at once as if it
// had never been there; if the rest is not removed, Finish does that. A directory that has
// something else is left as it is. waiting says which checkpoints pods are yet to go on from; it is
// asked when nobody can begin to use the checkpoint any more.
func Remove(dir string, waiting func() ([]string, error)) error {
	dir = filepath.Clean(dir)
	lock, err := alone(dir)
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
	gone := filepath.Join(filepath.Dir(dir), going+filepath.Base(dir))
	if err := empty(gone); err != nil { // of an earlier one of that name
		return err
	}
	if err := os.Rename(dir, gone); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(filepath.Dir(dir)); err != nil {
		return err
	}
	failpoint.Hit(failpoint.PodCheckpointRenamed)
	return empty(gone)
}

// same says whether two paths lead to one directory. Pods may have been restored by another path.
func same(a, b string) bool {
	one, err := os.Stat(a)
	if err != nil {
		return false
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other)
}

// empty removes a directory that was renamed, if it is there.
func empty(gone string) error {
	if err := manifest.Remove(gone); err != nil {
		return fmt.Errorf("remove %s: %w", gone, err)
	}
	failpoint.Hit(failpoint.PodCheckpointEmptied)
	return atomicfile.Remove(gone)
}

// Finish removes what interrupted removals left directly below parent, unless somebody is still
// at it. It fails if others than root can change parent: they might have such names lead elsewhere.
func Finish(parent string) (finished int, err error) {
	entries, err := manifest.Entries(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("the directory of checkpoints: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), going) {
			continue
		}
		switch ferr := finish(filepath.Join(parent, e.Name())); {
		case ferr == nil:
			finished++
		case !errors.Is(ferr, ErrInUse) && !errors.Is(ferr, fs.ErrNotExist):
			err = errors.Join(err, ferr)
		}
	}
	return finished, err
}

func finish(gone string) error {
	lock, err := alone(gone)
	if err != nil {
		return err
	}
	defer lock.Close()
	return empty(gone)
}
