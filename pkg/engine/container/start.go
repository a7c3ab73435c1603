package container

import (
	"context"
	"errors"
	"fmt"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/step"
)

// startError is the reason of a container that could not be started (CRI).
const startError = "StartError"

// starts are of containers, by a call or by an earlier daemon.
type starts struct {
	Deps
	ends *ends
}

// StartContainer starts a CREATED container. When it answers, the next status
// says RUNNING, or how it ended. A container that cannot be started is EXITED
// with code 128 and reason StartError.
func (b *starts) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	c, err := b.Pods.Index.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := b.startCreated(ctx, c); err != nil {
		if c.Status().Phase == pod.PhaseExited {
			b.Hooks.Plugins.StopContainer(ctx, b.Hooks.Container(c))
		}
		return nil, err
	}
	b.Hooks.Plugins.PostStartContainer(ctx, b.Hooks.Container(c))
	return &runtimeapi.StartContainerResponse{}, nil
}

func (b *starts) startCreated(ctx context.Context, c *pod.Container) error {
	if err := c.Op.Lock(ctx); err != nil {
		return err
	}
	defer c.Op.Unlock()
	if p := c.Status().Phase; p != pod.PhaseCreated {
		return fmt.Errorf("container %s is %s; only created containers can be started: %w", c.ID(), p, errdefs.ErrFailedPrecondition)
	}
	if err := c.Sandbox.Open(); err != nil {
		return err
	}
	how := b.starterOf(c)
	if err := how.allowed(); err != nil {
		return err
	}
	if err := b.needNamespaces(ctx, c.Sandbox); err != nil {
		return err
	}
	if err := b.start(ctx, c, how); err != nil {
		return err
	}
	b.Events.Announce(c.ID(), c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	go b.ends.Watch(c)
	return nil
}

// start needs c.op. The runtime's work is not cut short with the caller's
// context: half a start is worse than a container nobody waits for.
func (b *starts) start(ctx context.Context, c *pod.Container, how starter) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), how.limit()+pod.UndoTimeout)
	defer cancel()
	client, err := c.Sandbox.Runner.Client(ctx)
	if err != nil {
		return err
	}
	if _, err := b.Pods.Index.TargetPID(c.Sandbox, c.Config()); err != nil {
		return err
	}
	if err := b.Binaries.Runtimes.Ensure(c.Sandbox); err != nil {
		return b.startFailed(ctx, c, err)
	}
	if why := c.Status().Unstartable; why != "" {
		return b.startFailed(ctx, c, c.Sandbox.Runner.Blame(errors.New(why)))
	}
	asking, end := step.Begin(ctx, step.Plugins)
	err = b.Hooks.Plugins.StartContainer(asking, b.Hooks.Container(c))
	if end(err); err != nil {
		return b.startFailed(ctx, c, err)
	}
	memory := task.MemoryOf(c.Sandbox)
	starting, end := step.Begin(ctx, step.Runtime)
	pid, err := how.begin(starting, client)
	end(err)
	if shim.Lost(err) && b.Pods.Background.Err() != nil {
		return err // the start goes on without this daemon: the next one asks what came of it
	}
	if err != nil {
		return b.startFailed(ctx, c, c.Sandbox.Runner.Blame(memory.Explain(err)))
	}
	failpoint.Hit(failpoint.ContainerRunning)
	how.started(ctx)
	c.Sandbox.Runner.Keep(ctx, task.KeptOf(b.Pods.Layout, c, pid))
	err = c.Update(func(st *pod.ContainerStatus) error {
		st.Phase, st.PID, st.StartedAt = pod.PhaseRunning, pid, b.Pods.Clock.Now()
		return nil
	})
	if err != nil {
		// What is not on record must not run.
		return b.startFailed(ctx, c, err)
	}
	return nil
}

// starter is how a container is started: anew, or from a checkpoint.
type starter interface {
	// allowed refuses a start that must wait for others.
	allowed() error
	// limit is how long the call of the runtime may take.
	limit() time.Duration
	// begin has the runtime start it, and returns the pid of its first process.
	begin(ctx context.Context, client *shim.Client) (int, error)
	// started is called once it runs.
	started(ctx context.Context)
}

func (b *starts) starterOf(c *pod.Container) starter {
	if c.Spec().Checkpoint != "" {
		return restoredStart{newStart{b, c}}
	}
	return newStart{b, c}
}

// newStart is the starter of a container that begins.
type newStart struct {
	*starts
	c *pod.Container
}

func (n newStart) allowed() error {
	if n.Pods.Index.Waits(n.c.Sandbox) {
		return fmt.Errorf("sandbox %s is restored from a checkpoint; start all of the containers first that are restored with it: %w", n.c.Sandbox.ID(), errdefs.ErrFailedPrecondition)
	}
	return nil
}

func (n newStart) limit() time.Duration { return task.CallTimeout(n.c.Sandbox.Spec().Definition) }

func (n newStart) begin(ctx context.Context, client *shim.Client) (int, error) {
	return n.startTask(ctx, client, n.c)
}

func (newStart) started(context.Context) {}

// startAttempts is how often a supervisor is asked for a start that none has begun.
const startAttempts = 3

// startTask returns the pid. A supervisor goes on with a start when its connection
// is lost, so it is asked what came of that. The successor of one that died before it
// began is asked to start: supervisors write down that they begin, and none begins a
// second time.
func (b *starts) startTask(ctx context.Context, client *shim.Client, c *pod.Container) (int, error) {
	var lost error
	for range startAttempts {
		started, err := client.Task.Start(ctx, &taskapi.StartRequest{ID: c.ID()})
		if err == nil {
			return int(started.Pid), nil
		}
		err = task.FromShim(err)
		begun := lost != nil && errdefs.IsFailedPrecondition(err) // by an earlier request, which was heard after all
		if !c.Sandbox.JournalsStarts() || !shim.Lost(err) && !begun {
			return 0, err
		}
		if lost == nil {
			lost = err
		}
		state, pid, err := b.Tasks.AwaitStart(ctx, c, task.RecoveryAnswer)
		if err == nil && state == task.Started {
			return pid, nil
		}
		if err != nil || state != task.Unstarted || b.Pods.Background.Err() != nil {
			return 0, lost
		}
		if client, err = c.Sandbox.Runner.Client(ctx); err != nil {
			return 0, lost
		}
	}
	return 0, lost
}

// startFailed records that c will never run.
func (b *starts) startFailed(ctx context.Context, c *pod.Container, cause error) error {
	err := c.Force(func(st *pod.ContainerStatus) { st.Failed(startError, cause, b.Pods.Clock.Now()) })
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Error("Failed to record failed container start")
	}
	b.Events.Announce(c.ID(), c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	close(c.Exited) // only now may somebody remove it, and announce that
	b.ends.EndRestore(c)
	if ctx.Err() != nil {
		go b.ends.EraseEnded(c) // the start took all the time there was
	} else {
		b.ends.erase(ctx, c)
	}
	return fmt.Errorf("start container: %w", cause)
}

// errUnheard is the cause of a failed start whose answer no daemon received.
var errUnheard = errors.New("the container failed to start after the daemon had exited; see the log of its supervisor")

// FinishStart does what is left of a start that an earlier daemon began. It holds
// c.op, which it is given, until that has ended, as the call itself would have.
func (b *starts) FinishStart(c *pod.Container) {
	log.G(b.Pods.Background).WithField("container", c.ID()).Info("Waiting for a container start that an earlier daemon began")
	state, pid, err := b.Tasks.AwaitStart(b.Pods.Background, c, 0)
	if err == nil {
		b.settle(c, state, pid)
	}
	c.Op.Unlock()
	b.tellPlugins(c)
}

// NoticeStart finds out whether a start of a foreign shim was under way: the shim does
// not report that, and is asked again for as long as a start may take.
func (b *starts) NoticeStart(c *pod.Container) {
	ctx, cancel := context.WithTimeout(b.Pods.Background, task.CallTimeout(c.Sandbox.Spec().Definition))
	defer cancel()
	for c.Status().Phase == pod.PhaseCreated {
		select {
		case <-time.After(noticeInterval):
		case <-ctx.Done():
			return
		}
		bounded, cancel := context.WithTimeout(ctx, task.RecoveryAnswer)
		state, pid, err := b.Tasks.State(bounded, c.Sandbox, c.ID())
		cancel()
		if err != nil || state == task.Unstarted {
			continue
		}
		// A call that starts it now does the rest.
		if c.Op.Lock(ctx) != nil {
			return
		}
		mine := c.Status().Phase == pod.PhaseCreated
		if mine {
			b.settle(c, state, pid)
		}
		c.Op.Unlock()
		if mine {
			b.tellPlugins(c)
		}
		return
	}
}

// noticeInterval is the pause between two questions of NoticeStart.
const noticeInterval = time.Second

// settle records what came of a start that no call waits for. It needs c.Op.
func (b *starts) settle(c *pod.Container, state task.State, pid int) {
	switch state {
	case task.Failed:
		ctx, cancel := context.WithTimeout(b.Pods.Background, pod.UndoTimeout)
		defer cancel()
		_ = b.startFailed(ctx, c, errUnheard) // it returns the cause
	case task.Gone:
		b.ends.RecordEnd(c, pod.Exit{At: time.Now(), Unknown: true})
		go b.ends.EraseEnded(c)
	case task.Started:
		b.starterOf(c).started(b.Pods.Background)
		c.Record(b.Pods.Background, func(st *pod.ContainerStatus) {
			st.Phase, st.PID, st.StartedAt = pod.PhaseRunning, pid, b.Pods.Clock.Now()
		})
		ctx, cancel := context.WithTimeout(b.Pods.Background, task.RecoveryAnswer)
		defer cancel()
		c.Sandbox.Runner.Keep(ctx, task.KeptOf(b.Pods.Layout, c, pid))
		b.Events.Announce(c.ID(), c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
		go b.ends.Watch(c)
	}
}

// tellPlugins notifies plugins as StartContainer would have.
func (b *starts) tellPlugins(c *pod.Container) {
	switch c.Status().Phase {
	case pod.PhaseRunning:
		b.Hooks.Plugins.PostStartContainer(b.Pods.Background, b.Hooks.Container(c))
	case pod.PhaseExited:
		b.Hooks.Plugins.StopContainer(b.Pods.Background, b.Hooks.Container(c))
	}
}
