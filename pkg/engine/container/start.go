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

// startError is the reason of a container that failed to start (CRI).
const startError = "StartError"

// starts serves StartContainer, and finishes the starts of an earlier daemon.
type starts struct {
	Deps
	ends *ends
}

// StartContainer starts a CREATED container. After the response the status is RUNNING or EXITED. A
// container that fails to start is EXITED with code 128 and reason StartError.
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

// start is called with c.Op held. A cancellation by the caller does not interrupt the runtime: that
// could leave a partially started container.
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
		return b.startFailed(ctx, c, c.Sandbox.Runner.Attribute(errors.New(why)))
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
		return err // the start continues; the next daemon asks for the result
	}
	if err != nil {
		return b.startFailed(ctx, c, c.Sandbox.Runner.Attribute(memory.Explain(err)))
	}
	failpoint.Hit(failpoint.ContainerRunning)
	how.started(ctx)
	c.Sandbox.Runner.Keep(ctx, task.KeptOf(b.Pods.Layout, c, pid))
	err = c.Update(func(st *pod.ContainerStatus) error {
		st.Phase, st.PID, st.StartedAt = pod.PhaseRunning, pid, b.Pods.Clock.Now()
		return nil
	})
	if err != nil {
		// A container must not run without a record: startFailed kills it.
		return b.startFailed(ctx, c, err)
	}
	return nil
}

// starter starts a container anew or from a checkpoint.
type starter interface {
	// allowed rejects a start that must wait for other containers.
	allowed() error
	// limit bounds the runtime's call.
	limit() time.Duration
	// begin starts the container, and returns the pid of its first process.
	begin(ctx context.Context, client *shim.Client) (int, error)
	// started is called once the container runs.
	started(ctx context.Context)
}

func (b *starts) starterOf(c *pod.Container) starter {
	if c.Spec().Checkpoint != "" {
		return restoredStart{newStart{b, c}}
	}
	return newStart{b, c}
}

// newStart is the starter of a new container.
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

// startAttempts bounds the start requests for a start that no supervisor has begun.
const startAttempts = 3

// startTask starts c and returns its pid. A supervisor continues a start when the connection is
// lost; its state then has the result. If it died before the start began, its successor is asked to
// start c: supervisors record a start before they begin it, so no start is begun twice.
func (b *starts) startTask(ctx context.Context, client *shim.Client, c *pod.Container) (int, error) {
	var lost error
	for range startAttempts {
		started, err := client.Task.Start(ctx, &taskapi.StartRequest{ID: c.ID()})
		if err == nil {
			return int(started.Pid), nil
		}
		err = task.FromShim(err)
		begun := lost != nil && errdefs.IsFailedPrecondition(err) // by an earlier request, which was received after all
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

// startFailed records that c failed to start.
func (b *starts) startFailed(ctx context.Context, c *pod.Container, cause error) error {
	err := c.Force(func(st *pod.ContainerStatus) { st.Failed(startError, cause, b.Pods.Clock.Now()) })
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Error("Failed to record failed container start")
	}
	b.Events.Announce(c.ID(), c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	close(c.Exited) // last: it permits removal, which is announced after the exit
	b.ends.endRestore(c)
	if ctx.Err() != nil {
		go b.ends.EraseExited(c) // ctx expired during the start
	} else {
		b.ends.erase(ctx, c)
	}
	return fmt.Errorf("start container: %w", cause)
}

// errLostStart is the recorded cause of a failed start if no daemon received the error.
var errLostStart = errors.New("the container failed to start after the daemon had exited; see the log of its supervisor")

// FinishStart completes a start that an earlier daemon began. The caller has locked c.Op;
// FinishStart unlocks it when the start has ended, like StartContainer.
func (b *starts) FinishStart(c *pod.Container) {
	log.G(b.Pods.Background).WithField("container", c.ID()).Info("Waiting for a container start that an earlier daemon began")
	state, pid, err := b.Tasks.AwaitStart(b.Pods.Background, c, 0)
	if err == nil {
		b.settle(c, state, pid)
	}
	c.Op.Unlock()
	b.notifyPlugins(c)
}

// NoticeStart detects a start that a foreign shim may have under way for an earlier daemon. The
// shim does not report that, so the state is polled for as long as a start may take.
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
		// If a call has started c meanwhile, that call records the start.
		if c.Op.Lock(ctx) != nil {
			return
		}
		mine := c.Status().Phase == pod.PhaseCreated
		if mine {
			b.settle(c, state, pid)
		}
		c.Op.Unlock()
		if mine {
			b.notifyPlugins(c)
		}
		return
	}
}

// noticeInterval is the polling interval of NoticeStart.
const noticeInterval = time.Second

// settle records the result of a start that an earlier daemon began. c.Op is held.
func (b *starts) settle(c *pod.Container, state task.State, pid int) {
	switch state {
	case task.Failed:
		ctx, cancel := context.WithTimeout(b.Pods.Background, pod.UndoTimeout)
		defer cancel()
		_ = b.startFailed(ctx, c, errLostStart) // it returns its cause
	case task.Gone:
		b.ends.RecordExit(c, pod.Exit{At: time.Now(), Unknown: true})
		go b.ends.EraseExited(c)
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

// notifyPlugins notifies plugins as StartContainer would have.
func (b *starts) notifyPlugins(c *pod.Container) {
	switch c.Status().Phase {
	case pod.PhaseRunning:
		b.Hooks.Plugins.PostStartContainer(b.Pods.Background, b.Hooks.Container(c))
	case pod.PhaseExited:
		b.Hooks.Plugins.StopContainer(b.Pods.Background, b.Hooks.Container(c))
	}
}
