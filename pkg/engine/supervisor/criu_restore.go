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

// criuRestore is hostKernel's starter of a container whose processes go on from images of CRIU.
type criuRestore struct{ task *task }

func (r criuRestore) files() criufiles.Restore {
	return criufiles.Restore{Task: &r.task.journal, Work: filepath.Join(r.task.dir, "criu")}
}

// prepare captures no stderr: a checkpoint by CRIU has the files of its processes in it, which
// it cannot open again. Undo is done.
func (r criuRestore) prepare(l *firstLaunch) (err error) {
	l.call.Args, l.call.Environment, err = r.files().Prepare()
	l.call.ByCRIU = true
	return err
}

func (r criuRestore) done() {
	if err := r.files().Remove(); err != nil {
		log.G(r.task.context()).WithError(err).Warn("Failed to remove what CRIU needed")
	}
}

// clean ends what a restore that failed, or was cut off, has left: before the runtime has
// recorded the container, its delete removes neither processes nor CRIU. After any restore it
// unmounts what was mounted for it.
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

// explain adds to the runtime's error what CRIU logged.
func (r criuRestore) explain(err error) error { return criufiles.ExplainRestore(err, r.files().Work) }

// unmount takes away what a runtime or CRIU that was killed left mounted in directories that
// are removed with all that is in them: the container's own files, its volumes and all
// cgroups.
func (r criuRestore) unmount() error {
	j := &r.task.journal
	return errors.Join(
		mountpoint.UnmountBelow(filepath.Join(j.Options.Root, r.task.id)),
		mountpoint.UnmountBelow(r.task.dir),
		mountpoint.Remove(filepath.Join(j.Bundle, crunRoot)),
	)
}

// crunRoot is where in the bundle crun mounts the root filesystem for CRIU.
const crunRoot = "criu-root"
