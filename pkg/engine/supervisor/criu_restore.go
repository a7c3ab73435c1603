package supervisor

import (
	"errors"
	"path/filepath"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
	"github.com/berth-cri/berth/pkg/engine/supervisor/cgroups"
	"github.com/berth-cri/berth/pkg/engine/supervisor/criufiles"
)

// criuRestore is hostKernel's starter of a container that CRIU restores.
type criuRestore struct{ task *task }

func (r criuRestore) files() criufiles.Restore {
	return criufiles.Restore{Task: &r.task.journal, Work: filepath.Join(r.task.dir, "criu")}
}

// prepare does not capture stderr: CRIU's images name the files of the processes, and CRIU could
// not open a captured file again. done removes the files that prepare writes.
func (r criuRestore) prepare(l *firstLaunch) (err error) {
	l.call.Args, l.call.Environment, err = r.files().Prepare()
	l.call.ByCRIU = true
	return err
}

func (r criuRestore) done() {
	if err := r.files().Remove(); err != nil {
		log.G(r.task.context()).WithError(err).Warn("Failed to remove the files for CRIU")
	}
}

// clean removes the mounts of a restore. After a failed or interrupted restore it first kills the
// processes: the runtime's delete kills neither them nor CRIU unless the runtime has recorded the
// container.
func (r criuRestore) clean(unstarted bool) error {
	if !unstarted {
		return r.unmount()
	}
	r.task.killOrphanedRun()
	j := &r.task.journal
	asked := cgroups.Asked(bundle.Read(j.Bundle).Linux.CgroupsPath, r.task.id, j.Options.SystemdCgroup)
	var err error
	if group := cgroups.At(r.task.supervisor.hierarchies, asked); group.Main() != "" {
		err = group.Kill()
	}
	return errors.Join(err, r.unmount())
}

// explain adds CRIU's logged error to the runtime's.
func (r criuRestore) explain(err error) error { return criufiles.ExplainRestore(err, r.files().Work) }

// unmount removes mounts that a killed runtime or CRIU left in directories that are later removed
// recursively: that removal would delete the container's files, its volumes and all cgroups through
// a mount.
func (r criuRestore) unmount() error {
	j := &r.task.journal
	return errors.Join(
		mountpoint.UnmountBelow(filepath.Join(j.Options.Root, r.task.id)),
		mountpoint.UnmountBelow(r.task.dir),
		mountpoint.Remove(filepath.Join(j.Bundle, crunRoot)),
	)
}

// crunRoot is the directory in the bundle where crun mounts the root filesystem for CRIU.
const crunRoot = "criu-root"
