package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
	supervisorapi "github.com/berth-cri/berth/proto/berth/supervisor/v1"
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

// StartContainer starts a CREATED container. When it answers, the next status
// says RUNNING, or how it ended. A container that cannot be started is EXITED
// with code 128 and reason StartError.
func (b containers) StartContainer(ctx context.Context, r *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
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

func (b containers) startCreated(ctx context.Context, c *container) error {
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
	if err := b.start(ctx, c); err != nil {
		return err
	}
	b.events.announce(c.ID(), c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	go b.watch(c)
	return nil
}

// start needs c.op. The runtime's work is not cut short with the caller's
// context: half a start is worse than a container nobody waits for.
func (b containers) start(ctx context.Context, c *container) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout(c.sandbox.Spec().Definition)+undoTimeout)
	defer cancel()
	client, err := b.tasks.client(ctx, c.sandbox)
	if err != nil {
		return err
	}
	if _, err := b.targetPID(c.sandbox, c.config()); err != nil {
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
func (b containers) startTask(ctx context.Context, client *shim.Client, c *container) (int, error) {
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
func (b containers) startFailed(ctx context.Context, c *container, cause error) error {
	err := c.Force(func(st *containerStatus) { st.failedStart(cause, b.clock.now()) })
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Error("record a failed start")
	}
	b.events.announce(c.ID(), c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	close(c.exited) // only now may somebody remove it, and announce that
	if ctx.Err() != nil {
		go b.eraseEnded(c) // the start took all the time there was
	} else {
		b.erase(ctx, c)
	}
	return fmt.Errorf("start container: %w", cause)
}

// watch waits for the end of a running container and records it.
func (b containers) watch(c *container) {
	exit, err := b.exits.await(c.sandbox, c.ID())
	if err != nil {
		return // the engine is closing
	}
	b.ended(c, exit)
}

// ended records the end of c, tells everybody, and lets the runtime forget it.
func (b containers) ended(c *container, exit taskExit) {
	b.flushLog(c)
	b.recordEnd(c, exit)
	if b.plugins != nil {
		go b.plugins.StopContainer(b.background, b.hooks.container(c)) // who removes c waits for it
	}
	b.eraseEnded(c)
}

// flushLogTimeout bounds what the supervisor bounds itself, if it answers.
const flushLogTimeout = 2 * time.Second

// flushLog waits for the log of an ended container to be whole, because whoever
// hears of the end may read its last lines. Tasks of the supervisor's own have
// ended only then.
func (b containers) flushLog(c *container) {
	s := c.sandbox.Spec()
	if s.Definition.Type != handler.Shim {
		return
	}
	ctx, cancel := context.WithTimeout(b.background, flushLogTimeout)
	defer cancel()
	drain, err := b.shims.Supervisor(ctx, s.Supervisor)
	if err == nil {
		_, err = drain.Supervisor.FlushStdio(ctx, &supervisorapi.FlushStdioRequest{Id: c.ID()})
		err = fromShim(err)
	}
	// A supervisor of an older build cannot be asked.
	if err != nil && !errdefs.IsNotImplemented(err) {
		log.G(b.background).WithError(err).WithField("container", c.ID()).Debug("wait for the log of an ended container")
	}
}

// killedForMemory tells what a foreign shim may report too late, or to nobody:
// the cgroup's own count, which is there until the task is deleted.
func (b containers) killedForMemory(c *container) bool {
	if c.oom.Load() {
		return true
	}
	if s := c.sandbox.Spec(); s.Definition.Type != handler.Shim || s.Plan.OwnKernel {
		return false
	}
	kills, err := cgroup.OOMKills(cgroup.HostPaths(c.Spec().CgroupsPath))
	return err == nil && kills > 0
}

// recordEnd makes c EXITED.
func (b containers) recordEnd(c *container, exit taskExit) {
	oom := exit.OOM || b.killedForMemory(c)
	err := c.Force(func(st *containerStatus) {
		if exit.Unknown {
			st.lostExit(exit.At)
			return
		}
		st.Phase, st.PID = phaseExited, 0
		st.ExitCode, st.Reason = int32(exit.Status), exitReason(int32(exit.Status), oom, false)
		st.Message = exit.Why
		// The supervisor may see the end of a short life before its start is
		// recorded here.
		st.FinishedAt = max(exit.At.UnixNano(), st.StartedAt)
	})
	if err != nil && !errdefs.IsNotFound(err) {
		log.G(b.background).WithError(err).WithField("container", c.ID()).Error("record the end of a container")
	}
	b.clock.seen(exit.At.UnixNano())
	b.events.announce(c.ID(), c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	close(c.exited) // only now may somebody remove it, and announce that
}

func (b containers) eraseEnded(c *container) {
	ctx, cancel := context.WithTimeout(b.background, undoTimeout)
	defer cancel()
	b.erase(ctx, c)
}

// erase lets the runtime forget an ended container. What fails here is tried
// again when the daemon starts and when the container is removed.
func (b containers) erase(ctx context.Context, c *container) {
	defer close(c.erased)
	if err := b.eraseTask(ctx, c); err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn("clean up after an ended container")
		return
	}
	if err := b.mounts.unmountParts(c.ID()); err != nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn("clean up after an ended container")
		return
	}
	if err := c.Force(func(st *containerStatus) { st.Erased = true }); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn("clean up after an ended container")
	}
}

// drainShim has a supervisor read the pipes of a foreign shim's container into
// its log: such a shim does not know the CRI's format.
func (b containers) drainShim(ctx context.Context, c *container) error {
	if c.sandbox.Spec().Definition.Type != handler.Shim {
		return nil
	}
	drain, err := b.shims.Supervisor(ctx, c.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	io := b.stdio(c)
	_, err = drain.Supervisor.OpenStdio(ctx, &supervisorapi.OpenStdioRequest{
		Id: c.ID(), Stdin: io.stdin, Stdout: io.stdout, Stderr: io.stderr, Terminal: c.config().GetTty(),
		LogPath: c.Spec().LogPath, MaxLogLine: int32(b.settings.of(c.sandbox.Spec()).MaxLogLineSize),
	})
	if err != nil {
		return fmt.Errorf("open log: %w", fromShim(err))
	}
	return nil
}

// eraseTask kills what runs of c, and removes what the runtime and the log's
// writer have of it.
func (b containers) eraseTask(ctx context.Context, c *container) error {
	b.runtimes.mend(c.sandbox)
	client, err := b.tasks.client(ctx, c.sandbox)
	if err == nil {
		err = endTask(ctx, client, c.ID())
	}
	if lostShim(c.sandbox, err) {
		_, err = b.burials.bury(ctx, c.sandbox, c.ID())
	}
	if err != nil {
		return err
	}
	b.shims.Drop(c.sandbox.Spec().Supervisor, c.ID())
	if c.sandbox.Spec().Definition.Type != handler.Shim {
		return nil
	}
	drain, err := b.shims.Supervisor(ctx, c.sandbox.Spec().Supervisor)
	if err != nil {
		return err
	}
	if _, err := drain.Supervisor.CloseStdio(ctx, &supervisorapi.CloseStdioRequest{Id: c.ID()}); err != nil {
		return fmt.Errorf("close log: %w", fromShim(err))
	}
	return nil
}

// taskExit is how a task's first process ended.
type taskExit struct {
	Status       uint32
	At           time.Time
	OOM, Unknown bool
	// Why is for the user, where the status does not say it.
	Why string
}
