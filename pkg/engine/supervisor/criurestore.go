package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
)

// criuRestore starts a container whose processes go on from images of CRIU.
type criuRestore struct{ task *task }

// work is where CRIU writes its log, and makes what it needs for a moment.
func (r criuRestore) work() string { return filepath.Join(r.task.dir, "criu") }

// config is where the runtime finds what CRIU must know; the container's annotation names it.
func (r criuRestore) config() string {
	return filepath.Join(r.task.journal.Bundle, CRIUConfigFile)
}

// once is where CRIU finds what it may read only once.
func (r criuRestore) once() string { return filepath.Join(r.work(), "once.conf") }

// prepare writes what CRIU must know, and returns the runtime's command. Undo is done.
func (r criuRestore) prepare() ([]string, error) {
	j := &r.task.journal
	pipes, err := readPipes(j.Checkpoint)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	for fd := range pipes {
		if j.Terminal {
			return nil, fmt.Errorf("the checkpoint is of a container without a terminal: %w", errdefs.ErrInvalidArgument)
		}
		if fd == 0 && j.Stdin == "" {
			return nil, fmt.Errorf("the checkpoint is of a container with stdin; ask for it, too: %w", errdefs.ErrInvalidArgument)
		}
	}
	system, err := systemCRIUConfig(j.Options.Runtime)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(r.work(), 0o700); err != nil {
		return nil, err
	}
	once, err := onceConfig(pipesConfig(pipes))
	if err != nil {
		return nil, err
	}
	bundle := readBundle(j.Bundle)
	if err := errors.Join(
		os.WriteFile(r.config(), restoreConfig(system, joinedNamespaces(bundle)), 0o600),
		os.WriteFile(r.once(), once, 0o600),
	); err != nil {
		return nil, err
	}
	told := bundle.Annotations[criuConfigAnnotation] == r.config()
	return restoreArgs(j.Checkpoint, r.work(), j.Terminal, told), nil
}

// restoreArgs are the runtime's. One that is not told of a file for CRIU is crun, which joins
// the pod's namespaces itself; runc does not know the flag that it needs.
func restoreArgs(images, work string, terminal, told bool) []string {
	args := []string{"restore", "--image-path", images, "--work-path", work, "--ext-unix-sk", "--file-locks"}
	if terminal {
		args = append(args, "--shell-job")
	}
	if !told {
		args = append(args, "--tcp-close")
	}
	return args
}

// done removes what only CRIU needed.
func (r criuRestore) done() {
	err := errors.Join(ignoreNotExist(os.Remove(r.config())), mountpoint.UnmountBelow(r.work()))
	if err == nil {
		err = os.RemoveAll(r.work())
	}
	if err != nil {
		log.G(r.task.context()).WithError(err).Warn("Failed to remove what CRIU needed")
	}
}

// undo ends what a restore that failed, or was cut off, has left: a runtime that knows
// nothing of the container yet removes neither its processes nor CRIU.
func (r criuRestore) undo() error {
	takeover(r).killOrphanedRun()
	j := &r.task.journal
	asked := askedCgroup(readBundle(j.Bundle).Linux.CgroupsPath, r.task.id, j.Options.SystemdCgroup)
	var err error
	if group := cgroupAt(r.task.supervisor.hierarchies, asked); group.main() != "" {
		err = group.kill()
	}
	return errors.Join(err, r.unmount())
}

// unmount takes away what a runtime or CRIU that was killed left mounted in directories that
// are removed with all that is in them: the container's own files, its volumes and all
// cgroups.
func (r criuRestore) unmount() error {
	j := &r.task.journal
	return errors.Join(
		mountpoint.UnmountBelow(filepath.Join(j.Options.Root, r.task.id)),
		mountpoint.UnmountBelow(r.task.dir),
		ignoreNotExist(mountpoint.Remove(filepath.Join(j.Bundle, crunRoot))),
	)
}

// crunRoot is where in the bundle crun mounts the root filesystem for CRIU.
const crunRoot = "criu-root"
