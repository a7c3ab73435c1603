package enginetest

import (
	"context"
	"slices"
	"sync"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// Runner is a pod.Runner that records its calls, except KilledForMemory, and runs nothing. A call
// fails if Fails has an error for it, and a method that Runner does not define panics. As a Binder
// it binds itself to every sandbox.
type Runner struct {
	pod.Runner
	// Fails maps the names of methods to the errors that they return.
	Fails map[string]error
	// On, if set, is called with the method's name before the method returns.
	On func(call string)

	mu    sync.Mutex
	calls []string
}

// Calls returns the names of the methods called so far, in order.
func (r *Runner) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// Record records a call, also one of another fake, so that tests see the order of both.
func (r *Runner) Record(call string) error {
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

// Prepare implements pod.Connection.
func (r *Runner) Prepare(context.Context) error { return r.Record("Prepare") }

// Client implements pod.Connection.
func (r *Runner) Client(context.Context) (*shim.Client, error) { return nil, r.Record("Client") }

// Delete implements pod.Tasks.
func (r *Runner) Delete(context.Context, string) error { return r.Record("Delete") }

// End implements pod.Tasks.
func (r *Runner) End(context.Context) error { return r.Record("End") }

// StopOrKill implements pod.Tasks.
func (r *Runner) StopOrKill(ctx context.Context, end func(context.Context) error) error {
	if err := r.Record("StopOrKill"); err != nil {
		return err
	}
	return end(ctx)
}

// FlushLog implements pod.Logs.
func (r *Runner) FlushLog(context.Context, *pod.Container) error { return r.Record("FlushLog") }

// CloseLog implements pod.Logs.
func (r *Runner) CloseLog(context.Context, *pod.Container) error { return r.Record("CloseLog") }

// KilledForMemory implements pod.Meter.
func (r *Runner) KilledForMemory(context.Context, string) bool { return false }
