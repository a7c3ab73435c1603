package supervisor

import (
	"context"

	cgroupstats "github.com/containerd/cgroups/v3/cgroup1/stats"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
)

// This file has what a task is bound to when it is created or taken over: the kernel that
// runs its processes, and the starter of the first one.

// kernel is what depends on which kernel runs the processes of a container: the node's
// (hostKernel) or one of its own (ownKernel).
type kernel interface {
	// call runs the runtime.
	call(ctx context.Context, c *runtimecall.Call) ([]byte, error)
	// adopt takes over the first process that the runtime has started.
	adopt(ctx context.Context, l *launch, facts bundle.Facts) (*launched, error)
	// watch makes the end of the first process known. task.mu is held.
	watch() error
	// exited clears what can be cleared of an exited container before its removal.
	exited(ctx context.Context)
	// release has the runtime delete an exited container; unstarted is after a start that failed.
	release(ctx context.Context, unstarted bool) error

	// startExec calls the runtime and takes over what it started. After an error it kills that.
	startExec(ctx context.Context, p *process, e *execLaunch) (pid int, err error)
	// killLeftovers kills what a predecessor's exec left, whose first process was killed.
	killLeftovers(exec journal.Exec, session int)

	// The following are calls of the Task API for a running container.

	signal(ctx context.Context, sig unix.Signal, all bool) error
	pids(ctx context.Context) ([]int, error)
	stats(ctx context.Context) (*cgroupstats.Metrics, error)
	update(ctx context.Context, resources []byte) error
	checkpoint(ctx context.Context, images string, options *anypb.Any) error
}

// bind is the only place that asks which kernel runs the processes of a task.
func bind(t *task) {
	var restore starter
	if t.journal.Options.OwnKernel {
		t.kernel, restore = &ownKernel{task: t}, sandboxRestore{newStart{t}}
	} else {
		t.kernel, restore = &hostKernel{task: t}, criuRestore{t}
	}
	t.starter = newStart{t}
	if t.journal.Checkpoint != "" {
		t.starter = restore
	}
}

// starter makes the call that starts a container: anew, or from a
// checkpoint.
type starter interface {
	// prepare sets the command, and what belongs to it.
	prepare(l *firstLaunch) error
	// explain adds to the error of the call what is known beside it.
	explain(err error) error
	// done removes what only the call needed.
	done()
	// clean removes what the start left and the runtime does not know; unstarted is after
	// one that failed or was cut off.
	clean(unstarted bool) error
}

// newStart is the starter of a container that begins.
type newStart struct{ task *task }

func (n newStart) prepare(l *firstLaunch) error {
	l.call.Args = append([]string{"run"}, flagsOf(&n.task.journal.Options)...)
	return n.captureStderr(l)
}

// captureStderr opens what a process without stderr gets in its place.
func (n newStart) captureStderr(l *firstLaunch) (err error) {
	if j := &n.task.journal; !j.Terminal && j.Stderr == "" {
		l.stderr, err = runtimecall.Capture("stderr")
	}
	return err
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
