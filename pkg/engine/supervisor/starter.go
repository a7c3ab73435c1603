package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
	"github.com/berth-cri/berth/pkg/engine/supervisor/cgroups"
	"github.com/berth-cri/berth/pkg/engine/supervisor/criufiles"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
)

// starter makes the call that starts a container: anew, or from a
// checkpoint. A task is bound to one when it is created.
type starter interface {
	// prepare sets the command, and what belongs to it.
	prepare(c *runtimecall.Call) error
	// explain adds to the error of the call what is known beside it.
	explain(err error) error
	// done removes what only the call needed.
	done()
	// clean removes what the start left and the runtime does not know; unstarted is after
	// one that failed or was cut off.
	clean(unstarted bool) error
}

func starterOf(t *task) starter {
	switch {
	case t.journal.Checkpoint == "":
		return newStart{t}
	case t.journal.Options.OwnKernel:
		return sandboxRestore{newStart{t}}
	}
	return criuRestore{t}
}

// newStart is the starter of a container that begins.
type newStart struct{ task *task }

func (n newStart) prepare(c *runtimecall.Call) error {
	c.Args = append([]string{"run"}, flagsOf(&n.task.journal.Options)...)
	return nil
}

// flagsOf are the flags of run and of runsc's restore. CRIU pivots and makes no keyring; crun's
// restore refuses the former.
func flagsOf(o *journal.Options) []string {
	var flags []string
	if o.NoPivotRoot {
		flags = append(flags, "--no-pivot")
	}
	if o.NoNewKeyring {
		flags = append(flags, "--no-new-keyring")
	}
	return flags
}

func (newStart) explain(err error) error { return err }

func (newStart) done() {}

func (newStart) clean(bool) error { return nil }

// sandboxRestore is the starter of containers whose sandbox is restored as one. The first of
// them makes the sandbox, which waits until all the others have followed; only then all of
// them go on.
type sandboxRestore struct{ newStart }

func (r sandboxRestore) prepare(c *runtimecall.Call) error {
	j := &r.task.journal
	c.Args = append([]string{"restore", "--image-path", j.Checkpoint}, flagsOf(&j.Options)...)
	if bundle.Read(j.Bundle).IsMember() {
		return nil // how it is restored was said for the first one
	}
	if r.knows("-background", "help", "restore") {
		// Containers go on while their memory is still being read.
		c.Args = append(c.Args, "--background")
	}
	if r.knows("-restore-spec-validation", "flags") {
		// What must be the same was compared before. What the runtime compares beside it, such
		// as the OOM score, is this node's to say.
		c.Flags = []string{"--restore-spec-validation=warning"}
	}
	return nil
}

func (r sandboxRestore) knows(flag string, help ...string) bool {
	return runtimecall.Knows(r.task.context(), r.task.processes, &r.task.journal.Options, flag, help...)
}

// criuRestore is the starter of a container whose processes go on from images of CRIU.
type criuRestore struct{ task *task }

// work is where CRIU writes its log, and makes what it needs for a moment.
func (r criuRestore) work() string { return filepath.Join(r.task.dir, "criu") }

// config is where the runtime finds what CRIU must know; the container's annotation names it.
func (r criuRestore) config() string {
	return filepath.Join(r.task.journal.Bundle, criufiles.ConfigFile)
}

// once is where CRIU finds what it may read only once.
func (r criuRestore) once() string { return filepath.Join(r.work(), "once.conf") }

// prepare writes what CRIU must know, too. Undo is done.
func (r criuRestore) prepare(c *runtimecall.Call) error {
	j := &r.task.journal
	pipes, err := criufiles.ReadPipes(j.Checkpoint)
	if err != nil {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	for fd := range pipes {
		if j.Terminal {
			return fmt.Errorf("the checkpoint is of a container without a terminal: %w", errdefs.ErrInvalidArgument)
		}
		if fd == 0 && j.Stdin == "" {
			return fmt.Errorf("the checkpoint is of a container with stdin; ask for it, too: %w", errdefs.ErrInvalidArgument)
		}
	}
	system, err := criufiles.SystemConfig(j.Options.Runtime)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.work(), 0o700); err != nil {
		return err
	}
	once, err := criufiles.OnceConfig(criufiles.PipesConfig(pipes))
	if err != nil {
		return err
	}
	facts := bundle.Read(j.Bundle)
	if err := errors.Join(
		os.WriteFile(r.config(), criufiles.RestoreConfig(system, criufiles.JoinedNamespaces(facts)), 0o600),
		os.WriteFile(r.once(), once, 0o600),
	); err != nil {
		return err
	}
	told := facts.Annotations[criufiles.ConfigAnnotation] == r.config()
	c.Args = criufiles.RestoreArgs(j.Checkpoint, r.work(), j.Terminal, told)
	c.Environment = []string{criufiles.ConfigEnv + "=" + r.once()}
	c.ByCRIU = true
	return nil
}

// done removes what only CRIU needed.
func (r criuRestore) done() {
	err := errors.Join(os.RemoveAll(r.config()), mountpoint.UnmountBelow(r.work()))
	if err == nil {
		err = os.RemoveAll(r.work())
	}
	if err != nil {
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
func (r criuRestore) explain(err error) error { return criufiles.ExplainRestore(err, r.work()) }

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
