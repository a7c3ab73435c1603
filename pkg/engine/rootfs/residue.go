package rootfs

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// residueInterval is how often it is tried to remove what was busy.
const residueInterval = time.Minute

// residue are files of sandboxes and containers that are removed, but for what
// something else on the node keeps busy. They have no record any more: a later
// start of the daemon finds them by their directories.
type residue struct {
	background context.Context // ends with the engine
	interval   time.Duration

	mu       sync.Mutex
	left     map[string]func() error // guarded by mu; by directory
	retrying bool                    // guarded by mu
}

func newResidue(background context.Context) *residue {
	return &residue{background: background, interval: residueInterval, left: map[string]func() error{}}
}

// Erase calls remove, which removes dir. If that is busy it is tried again later,
// and is no error: nothing of what calls are about is in there.
func (r *residue) Erase(dir string, remove func() error) error {
	err := remove()
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	log.G(r.background).WithError(err).WithField("path", dir).Warn("Failed to remove busy files; will retry")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left[dir] = remove
	if !r.retrying {
		r.retrying = true
		go func() {
			_ = wait.PollUntilContextCancel(r.background, r.interval, false, func(context.Context) (bool, error) { return r.again(), nil })
		}()
	}
	return nil
}

// again tries once, and reports whether nothing is left.
func (r *residue) again() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for dir, remove := range r.left {
		if err := remove(); err != nil {
			log.G(r.background).WithError(err).WithField("path", dir).Debug("Failed to remove busy files; will retry")
			continue
		}
		delete(r.left, dir)
		log.G(r.background).WithField("path", dir).Info("Removed files that had been busy")
	}
	r.retrying = len(r.left) > 0
	return !r.retrying
}

// EraseSandbox removes what a disconnected sandbox has on disk.
func EraseSandbox(l pod.Layout, id string) error {
	// The directory has the links to what is elsewhere, so it goes last.
	if err := namespaces.Release(l.NsDir(id)); err != nil {
		return err
	}
	// What is still mounted belongs to all sandboxes: it must not be walked into.
	for _, m := range []string{l.FilesOf(id).Shm, filepath.Join(l.ProcessBundle(id), "rootfs")} {
		if err := mountpoint.Unmount(m); err != nil {
			return err
		}
	}
	return removeDir(l.SandboxDir(id))
}

// EraseContainer unmounts and removes what is in the directory of a container.
func (m *Mounts) EraseContainer(id string) error {
	if err := m.UnmountParts(id); err != nil {
		return err
	}
	return removeDir(m.pods.ContainerDir(id))
}
