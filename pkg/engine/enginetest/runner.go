package enginetest

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// Runner is a pod.Runner that runs nothing: it writes down what it is asked for, and
// fails where it is told to. It is the Binder that gives itself to every sandbox.
type Runner struct {
	// Fails has the error of each call that is to fail, by the method's name.
	Fails map[string]error
	// On, if set, is called with the method's name, before that answers.
	On func(call string)

	mu    sync.Mutex
	calls []string
}

var _ pod.Runner = (*Runner)(nil)

// Calls are the names of the methods called so far, in their order.
func (r *Runner) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.calls...)
}

// Note writes a call down that somebody else answers, for the order of both.
func (r *Runner) Note(call string) error {
	r.mu.Lock()
	r.calls = append(r.calls, call)
	err := r.Fails[call]
	r.mu.Unlock()
	if r.On != nil {
		r.On(call)
	}
	return err
}

// Bind implements pod.Binder.
func (r *Runner) Bind(*pod.Sandbox) pod.Runner { return r }

// Name implements pod.Runner.
func (r *Runner) Name() string { return "fake" }

// Prepare implements pod.Runner.
func (r *Runner) Prepare(context.Context) error { return r.Note("Prepare") }

// Launch implements pod.Runner.
func (r *Runner) Launch(context.Context) (*shim.Client, error) { return nil, r.Note("Launch") }

// Client implements pod.Runner.
func (r *Runner) Client(context.Context) (*shim.Client, error) { return nil, r.Note("Client") }

// Keep implements pod.Runner.
func (r *Runner) Keep(context.Context, shim.Kept) { _ = r.Note("Keep") }

// ReadLog implements pod.Runner.
func (r *Runner) ReadLog(context.Context) error { return r.Note("ReadLog") }

// Options implements pod.Runner.
func (r *Runner) Options(pod.TaskOptions) (*anypb.Any, error) { return nil, r.Note("Options") }

// LaunchTimeout implements pod.Runner.
func (r *Runner) LaunchTimeout() time.Duration { return time.Minute }

// Blame implements pod.Runner.
func (r *Runner) Blame(err error) error { return err }

// Exit implements pod.Runner.
func (r *Runner) Exit(context.Context, string) (pod.Exit, error) {
	return pod.Exit{}, r.Note("Exit")
}

// Gone implements pod.Runner.
func (r *Runner) Gone(error) bool { return true }

// LastWord implements pod.Runner.
func (r *Runner) LastWord(context.Context, string, error) (pod.Exit, error) {
	return pod.Exit{}, r.Note("LastWord")
}

// Delete implements pod.Runner.
func (r *Runner) Delete(context.Context, string) error { return r.Note("Delete") }

// End implements pod.Runner.
func (r *Runner) End(context.Context) error { return r.Note("End") }

// Insist implements pod.Runner.
func (r *Runner) Insist(ctx context.Context, end func(context.Context) error) error {
	if err := r.Note("Insist"); err != nil {
		return err
	}
	return end(ctx)
}

// OpenLog implements pod.Runner.
func (r *Runner) OpenLog(context.Context, *pod.Container) error { return r.Note("OpenLog") }

// FlushLog implements pod.Runner.
func (r *Runner) FlushLog(context.Context, *pod.Container) error { return r.Note("FlushLog") }

// CloseLog implements pod.Runner.
func (r *Runner) CloseLog(context.Context, *pod.Container) error { return r.Note("CloseLog") }

// Usage implements pod.Runner.
func (r *Runner) Usage(context.Context, string) (cgroup.Stats, error) {
	return cgroup.Stats{}, r.Note("Usage")
}

// KilledForMemory implements pod.Runner.
func (r *Runner) KilledForMemory(context.Context, string) bool { return false }
