package router

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/step"
)

// starts creates sandboxes within the limits of their handlers.
type starts struct {
	routes  routes
	owners  *owners
	counter *startCounter
	queues  *startQueues
}

// errStartTimeout is the cause of a context that ended by a handler's start_timeout.
var errStartTimeout = errors.New("start_timeout exceeded")

// run creates a sandbox under the handler with that name. A start that had to wait is routed again,
// because its handler may have been changed or cordoned meanwhile. start() must call made() with
// the new sandbox's ID; its context ends with the handler's start_timeout. check(), if not nil, may
// refuse a pod before the pod waits.
func (s *starts) run(ctx context.Context, name, uid string, check func(context.Context, Backend) error,
	start func(ctx context.Context, to *route, made func(id string)) error,
) error {
	routed, to, err := s.routes.forPod(ctx, name, uid)
	if err != nil {
		return err
	}
	d := to.Definition
	if check != nil && d.Limits.MaxParallelStarts > 0 {
		if err := check(routed, to.Backend); err != nil {
			return named(d.Name, err)
		}
	}
	bound, cancel := bounded(routed, d.Limits.StartTimeout)
	defer cancel()
	_, queued := step.Begin(bound, step.Queue)
	slot, err := s.queues.of(d.Name).acquire(bound, d, func() (settled, unsettled int) { return s.owners.live(d.Name) })
	if err != nil {
		queued(err)
		return named(d.Name, s.inTime(bound, d, err))
	}
	defer func() { slot.release(s.limits(d.Name)) }()
	if slot.waited {
		queued(nil)
		if bound, to, err = s.routes.forPod(bound, d.Name, uid); err != nil {
			return err
		}
	}
	attempt := handler.Attempt{Definition: handler.DefinitionFrom(bound), Pod: uid}
	ended := s.counter.watch(bound, d.Name, attempt)
	err = s.owners.create(to.Backend, func() error {
		var unowned error
		err := start(bound, to, func(id string) {
			attempt = identified(attempt, to.Backend, id)
			slot.fill(func() { unowned = s.owners.addSandbox(id, d.Name, attempt, to.Backend) })
		})
		if err == nil {
			err = unowned
		}
		return err
	})
	err = s.inTime(bound, d, err)
	s.counter.started(d.Name, attempt, to.Candidate != nil, err, ended())
	return named(d.Name, err)
}

// limits returns the limits of a handler in the current table, none if the table lacks it.
func (s *starts) limits(name string) handler.Limits {
	if to, ok := s.routes.registry.Current().Lookup(name); ok {
		return to.Definition.Limits
	}
	return handler.Limits{}
}

func bounded(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, timeout, errStartTimeout)
}

// inTime explains an error that start_timeout caused, and counts it.
func (s *starts) inTime(ctx context.Context, d *handler.Definition, err error) error {
	if err == nil || !errors.Is(context.Cause(ctx), errStartTimeout) {
		return err
	}
	s.queues.of(d.Name).timedOut()
	return overTime(fmt.Sprintf("the sandbox was not ready within start_timeout = %v and its creation was aborted; find out what is slow, or raise start_timeout under [runtimes.%s]: %v",
		d.Limits.StartTimeout, d.Name, err))
}

// overTime is an error text that matches context.DeadlineExceeded.
type overTime string

func (e overTime) Error() string { return string(e) }

func (overTime) Is(target error) bool { return target == context.DeadlineExceeded }
