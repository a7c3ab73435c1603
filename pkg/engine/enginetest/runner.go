package enginetest

import (
	"context"
	"slices"
	"sync"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// Runner is a pod.Runner that runs nothing: it writes down what it is asked for, and
// fails where Fails has an error. What no test expects panics. It is the Binder that gives
// itself to every sandbox.
type Runner struct {
	pod.Runner
	// Fails has the error of each call that is to fail, by the method's name.
	Fails map[string]error
	// On, if set, is called with the method's name, before that answers.
	On func(call string)

	mu    sync.Mutex
	calls []string
}

// Calls are the names of the methods called so far, in their order.
func (r *Runner) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
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
func (r *Runner) Bind(*pod.Sandbox) pod.Runner {
	return pod.Runner{Connection: r, Tasks: r, Logs: r, Meter: r}
}

// Prepare is of pod.Runner.
func (r *Runner) Prepare(context.Context) error { return r.Note("Prepare") }

// Client is of pod.Runner.
func (r *Runner) Client(context.Context) (*shim.Client, error) { return nil, r.Note("Client") }

// Delete is of pod.Runner.
func (r *Runner) Delete(context.Context, string) error { return r.Note("Delete") }

// End is of pod.Runner.
func (r *Runner) End(context.Context) error { return r.Note("End") }

// StopOrKill is of pod.Runner.
func (r *Runner) StopOrKill(ctx context.Context, end func(context.Context) error) error {
	if err := r.Note("StopOrKill"); err != nil {
		return err
	}
	return end(ctx)
}

// FlushLog is of pod.Runner.
func (r *Runner) FlushLog(context.Context, *pod.Container) error { return r.Note("FlushLog") }

// CloseLog is of pod.Runner.
func (r *Runner) CloseLog(context.Context, *pod.Container) error { return r.Note("CloseLog") }

// KilledForMemory is of pod.Runner.
func (r *Runner) KilledForMemory(context.Context, string) bool { return false }
