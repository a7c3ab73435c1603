package supervisor

import (
	"context"
	"fmt"

	cgroupstats "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
)

// When a task is created or taken over, this file selects the kernel that runs its processes, and
// the starter of its first process.

// kernel is the part of a task that depends on the kernel of its processes: the node's (hostKernel)
// or a separate one (ownKernel).
type kernel interface {
	// call runs the runtime.
	call(ctx context.Context, c *runtimecall.Call) ([]byte, error)
	// adopt takes over the first process once the runtime has started it.
	adopt(ctx context.Context, l *launch, facts bundle.Facts) (*launched, error)
	// watch reports the exit of the first process to the task. task.mu is held.
	watch() error
	// exited cleans up after an exited container early, before Delete.
	exited(ctx context.Context)
	// release makes the runtime delete an exited container; unstarted is set after a failed start.
	release(ctx context.Context, unstarted bool) error

	// startExec calls the runtime and takes over the started process, or kills it after an error.
	startExec(ctx context.Context, p *process, e *execLaunch) (pid int, err error)
	// killLeftovers kills the remaining processes of an exec that a predecessor started.
	killLeftovers(exec journal.Exec, session int)

	// The other methods are calls of the Task API for a running container.

	signal(ctx context.Context, sig unix.Signal, all bool) error
	pids(ctx context.Context) ([]int, error)
	stats(ctx context.Context) (*cgroupstats.Metrics, error)
	update(ctx context.Context, resources []byte) error
	checkpoint(ctx context.Context, images string, options *anypb.Any) error
}

// kernels maps the kind of kernel in TaskOptions to the kernel of a task and to the starter that
// restores the task. The kinds are those of probe.KernelKind for OCI runtimes.
var kernels = map[string]func(t *task) (kernel, starter){
	"":       func(t *task) (kernel, starter) { return &hostKernel{task: t}, criuRestore{t} },
	"gvisor": func(t *task) (kernel, starter) { return &ownKernel{task: t}, sandboxRestore{newStart{t}} },
}

func checkKernel(kind string) error {
	if kernels[kind] == nil {
		return fmt.Errorf("this supervisor runs no containers on a kernel of kind %q: %w", kind, errdefs.ErrNotImplemented)
	}
	return nil
}

// bind selects the kernel and the starter of a task. No other code depends on the kind of kernel.
func bind(t *task) {
	var restore starter
	t.kernel, restore = kernels[t.journal.Options.Kernel](t)
	t.starter = newStart{t}
	if t.journal.Checkpoint != "" {
		t.starter = restore
	}
}

// starter prepares the call that starts a container: a new one, or one from a checkpoint.
type starter interface {
	// prepare sets the arguments and the environment of the call.
	prepare(l *firstLaunch) error
	// explain adds details to the error of the call, such as an error from CRIU's log.
	explain(err error) error
	// done removes what only the call needed.
	done()
	// clean removes what the start left behind and the runtime's delete does not find; unstarted is
	// set after a start that failed or was interrupted.
	clean(unstarted bool) error
}

// newStart is the starter of a new container.
type newStart struct{ task *task }

func (n newStart) prepare(l *firstLaunch) error {
	l.call.Args = append([]string{"run"}, flagsOf(&n.task.journal.Options)...)
	return n.captureStderr(l)
}

// captureStderr opens a file for the runtime's errors if the process has neither stderr nor a
// terminal.
func (n newStart) captureStderr(l *firstLaunch) (err error) {
	if j := &n.task.journal; !j.Terminal && j.Stderr == "" {
		l.stderr, err = runtimecall.Capture("stderr")
	}
	return err
}

// flagsOf returns the flags of run and of runsc's restore. A restore by CRIU gets none of them:
// CRIU pivots and creates no keyring, and crun's restore refuses --no-pivot.
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
