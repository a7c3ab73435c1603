package recovery

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// unresponsiveAfter is how long a supervisor or shim may take for its first answer. All are asked
// at once, so unresponsive ones delay a start by this time, however many they are.
const unresponsiveAfter = 5 * time.Second

var errUnresponsive = errors.New("the supervisor or shim did not respond to an earlier call")

// unresponsive has the supervisors and shims that do not answer, because they are stopped or stuck.
// They are not asked again during recovery.
type unresponsive struct{ runners sync.Map }

func (u *unresponsive) add(runner string) { u.runners.Store(runner, true) }

func (u *unresponsive) has(runner string) bool {
	_, is := u.runners.Load(runner)
	return is
}

// findUnresponsive pings all supervisors and shims. It starts none, and is quick when all answer.
func (r *recovery) findUnresponsive(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, unresponsiveAfter)
	defer cancel()
	keys, err := r.Shims.Keys()
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to list supervisors")
	}
	var asked sync.WaitGroup
	ask := func(runner string, connect func() (*shim.Client, error)) {
		asked.Go(func() {
			// An unreachable one has exited, which later calls detect quickly.
			if c, err := connect(); err == nil && !c.Answers(ctx) {
				log.G(ctx).WithField("runner", runner).Error("Supervisor or shim is unresponsive; keeping the recorded state of everything it runs")
				r.unresponsive.add(runner)
			}
		})
	}
	for _, key := range keys {
		ask(key, func() (*shim.Client, error) { return r.Shims.Live(ctx, key) })
	}
	for _, o := range r.Pods.Sandboxes.List() {
		if ep := o.Status().Shim; ep != nil {
			ask(ep.Address, func() (*shim.Client, error) { return r.Shims.Foreign(ctx, *ep) })
		}
	}
	asked.Wait()
}

// ask calls f, which asks the runner of s, with a limit. A runner that exceeds it counts as
// unresponsive.
func (r *recovery) ask(ctx context.Context, s *pod.Sandbox, f func(context.Context) error) error {
	name := s.Runner.Name()
	if r.unresponsive.has(name) {
		return errUnresponsive
	}
	bounded, cancel := context.WithTimeout(ctx, task.RecoveryAnswer)
	defer cancel()
	err := f(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		r.unresponsive.add(name)
	}
	return err
}
