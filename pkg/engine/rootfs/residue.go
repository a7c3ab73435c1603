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

// residueInterval is how often the removal of busy files is retried.
const residueInterval = time.Minute

// residue is the set of files of removed sandboxes and containers that other programs keep busy.
// They have no record: a later start of the daemon finds them by their directories.
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

// Erase calls remove, which removes dir. A busy dir is no error, because no call uses it any more;
// its removal is retried later.
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

// again retries each removal once, and reports whether nothing is left.
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

// EraseSandbox removes the files of a torn down sandbox.
func EraseSandbox(l pod.Layout, id string) error {
	// Links below SandboxDir lead to namespaces elsewhere, so SandboxDir is removed last.
	if err := namespaces.Release(l.NsDir(id)); err != nil {
		return err
	}
	// The pause root filesystem is shared by sandboxes: its content must not be removed.
	for _, m := range []string{l.FilesOf(id).Shm, filepath.Join(l.ProcessBundle(id), "rootfs")} {
		if err := mountpoint.Unmount(m); err != nil {
			return err
		}
	}
	return removeDir(l.SandboxDir(id))
}

// EraseContainer unmounts and removes the directory of a container.
func (m *Mounts) EraseContainer(id string) error {
	if err := m.UnmountParts(id); err != nil {
		return err
	}
	return removeDir(m.pods.ContainerDir(id))
}
