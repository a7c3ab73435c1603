package engine

import (
	"context"
	"errors"
	"fmt"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
)

// fromShim gives an error of a shim call its class back. An error of the
// connection is none of the call's, and stays what it is (shim.Lost); so does the
// end of the caller's own time.
func fromShim(err error) error {
	if err == nil {
		return nil
	}
	if shim.Lost(err) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return err
	}
	return errgrpc.ToNative(err)
}

// starts are of containers, by a call or by an earlier daemon.
type starts struct {
	layout
	background context.Context // ends with the engine
	objects    *objects
	clock      *clock
	events     *announcer
	runtimes   *runtimes
	tasks      *tasks
	exits      *exits
	ends       *ends
	hooks      *hooks
	plugins    *nri.Plugins // nil unless there can be any
}

// StartContainer starts a CREATED container. When it answers, the next status
// says RUNNING, or how it ended. A container that cannot be started is EXITED
// with code 128 and reason StartError.
func (b *starts) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := b.objects.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := b.startCreated(ctx, c); err != nil {
		if c.Status().Phase == phaseExited {
			b.plugins.StopContainer(ctx, b.hooks.container(c))
		}
		return nil, err
	}
	b.plugins.PostStartContainer(ctx, b.hooks.container(c))
	return &runtimeapi.StartContainerResponse{}, nil
}

func (b *starts) startCreated(ctx context.Context, c *container) error {
	if err := c.op.lock(ctx); err != nil {
		return err
	}
	defer c.op.unlock()
	if p := c.Status().Phase; p != phaseCreated {
		return fmt.Errorf("container %s is %s, only a created one can be started: %w", c.ID(), p, errdefs.ErrFailedPrecondition)
	}
	if err := c.sandbox.open(); err != nil {
		return err
	}
	if err := c.sandbox.needNamespaces(ctx, b.events); err != nil {
		return err
	}
	if err := b.start(ctx, c); err != nil {
		return err
	}
	b.events.announce(c.ID(), c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	go b.ends.watch(c)
	return nil
}

// start needs c.op. The runtime's work is not cut short with the caller's
// context: half a start is worse than a container nobody waits for.
func (b *starts) start(ctx context.Context, c *container) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout(c.sandbox.Spec().Definition)+undoTimeout)
	defer cancel()
	client, err := b.tasks.client(ctx, c.sandbox)
	if err != nil {
		return err
	}
	if _, err := b.objects.targetPID(c.sandbox, c.config()); err != nil {
		return err
	}
	if err := b.runtimes.need(c.sandbox); err != nil {
		return b.startFailed(ctx, c, err)
	}
	if why := c.Status().Unstartable; why != "" {
		return b.startFailed(ctx, c, blamed(c.sandbox.Spec().Definition, errors.New(why)))
	}
	if err := b.plugins.StartContainer(ctx, b.hooks.container(c)); err != nil {
		return b.startFailed(ctx, c, err)
	}
	pid, err := b.startTask(ctx, client, c)
	if shim.Lost(err) && b.background.Err() != nil {
		return err // the start goes on without this daemon: the next one asks what came of it
	}
	if err != nil {
		return b.startFailed(ctx, c, blamed(c.sandbox.Spec().Definition, err))
	}
	failpoint.Hit(failpoint.ContainerRunning)
	b.tasks.keep(ctx, c.sandbox, client, b.keptOf(c, pid))
	err = c.Update(func(st *containerStatus) error {
		st.Phase, st.PID, st.StartedAt = phaseRunning, pid, b.clock.now()
		return nil
	})
	if err != nil {
		// What is not on record must not run.
		return b.startFailed(ctx, c, err)
	}
	return nil
}

// startTask returns the pid. A supervisor goes on with a start when its connection
// is lost, so it is asked what came of that.
func (b *starts) startTask(ctx context.Context, client *shim.Client, c *container) (int, error) {
	started, err := client.Task.Start(ctx, &taskapi.StartRequest{ID: c.ID()})
	if err == nil {
		return int(started.Pid), nil
	}
	err = fromShim(err)
	if !shim.Lost(err) || c.sandbox.Spec().Definition.Type != handler.OCI {
		return 0, err
	}
	if state, pid, askErr := b.exits.awaitStart(ctx, c, recoveryAnswer); askErr == nil && state == taskStarted {
		return pid, nil
	}
	return 0, err
}

// keptOf is what a supervisor would lose of c, whose first process is pid.
func (l layout) keptOf(c *container, pid int) shim.Kept {
	io := l.stdio(c)
	t := shim.Kept{ID: c.ID(), PID: pid, Terminal: c.config().GetTty()}
	for _, p := range []string{io.stdout, io.stderr} {
		if p != "" {
			t.Pipes = append(t.Pipes, p)
		}
	}
	return t
}

// startFailed records that c will never run.
func (b *starts) startFailed(ctx context.Context, c *container, cause error) error {
	err := c.Force(func(st *containerStatus) { st.failedStart(cause, b.clock.now()) })
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Error("record a failed start")
	}
	b.events.announce(c.ID(), c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	close(c.exited) // only now may somebody remove it, and announce that
	if ctx.Err() != nil {
		go b.ends.eraseEnded(c) // the start took all the time there was
	} else {
		b.ends.erase(ctx, c)
	}
	return fmt.Errorf("start container: %w", cause)
}
