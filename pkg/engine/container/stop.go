package container

import (
	"context"
	"fmt"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// stops serves stop and removal of containers.
type stops struct {
	Deps
	ends *ends
}

// StopContainer sends a container its stop signal, and after timeout seconds SIGKILL. It returns
// when the container is EXITED. Overlapping calls do not wait for each other. Missing and exited
// containers are no error.
func (b *stops) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := b.Pods.Index.Container(r.GetContainerId())
	if errdefs.IsNotFound(err) {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	// The stop continues if the caller gives up: otherwise a signalled container would run on
	// without its SIGKILL.
	stopped := make(chan error, 1)
	go func() { stopped <- b.stopDetached(ctx, c, graceOf(r.GetTimeout())) }()
	select {
	case err = <-stopped:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	b.Hooks.Plugins.StopContainer(ctx, b.Hooks.Container(c))
	return &runtimeapi.StopContainerResponse{}, nil
}

// stopDetached stops c even if the caller gives up. It ends with the engine; a kubelet repeats its
// request.
func (b *stops) stopDetached(ctx context.Context, c *pod.Container, grace time.Duration) error {
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(b.Pods.Background, cancel)()
	err := b.stop(working, c, grace)
	if err == nil && c.SharesProcesses() {
		err = c.AwaitErased(working)
	}
	if err != nil && ctx.Err() != nil && b.Pods.Background.Err() == nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn("Failed to stop container after its caller gave up")
	}
	return err
}

// graceOf limits a request's seconds to a duration that does not overflow.
func graceOf(seconds int64) time.Duration {
	const longest = 365 * 24 * 60 * 60
	return time.Duration(min(max(seconds, 0), longest)) * time.Second
}

func (b *stops) stop(ctx context.Context, c *pod.Container, grace time.Duration) error {
	if grace == 0 {
		return b.End(ctx, c)
	}
	if c.Status().Phase == pod.PhaseCreated {
		// A start may be under way: its process gets the signal and the grace period.
		if err := b.withdraw(ctx, c, grace); err != nil {
			return err
		}
	}
	if c.Status().Phase == pod.PhaseRunning {
		if err := b.signal(ctx, c, c.StopSignal(), false); err != nil {
			return err
		}
		failpoint.Hit(failpoint.ContainerStopped)
		if done, err := c.AwaitEnd(ctx, grace); done || err != nil {
			return err
		}
	}
	return b.End(ctx, c)
}

// withdraw cancels a container that was not started. It waits up to d for the end of a start under
// way.
func (b *stops) withdraw(ctx context.Context, c *pod.Container, d time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if err := c.Op.Lock(bounded); err != nil {
		return ctx.Err()
	}
	defer c.Op.Unlock()
	b.cancel(ctx, c)
	return nil
}

// End makes c EXITED: it kills the processes, or cancels a container that was not started.
func (b *stops) End(ctx context.Context, c *pod.Container) error {
	for {
		switch c.Status().Phase {
		case pod.PhaseExited:
			return nil
		case pod.PhaseCreated:
			if err := b.abort(ctx, c); err != nil {
				return err
			}
			continue // it may have been started
		}
		if err := b.signal(ctx, c, unix.SIGKILL, true); err != nil {
			return err
		}
		if done, err := c.AwaitEnd(ctx, pod.KillGrace); done || err != nil {
			return err
		}
		return fmt.Errorf("container %s did not exit within %s of SIGKILL; look for processes in uninterruptible sleep: %w",
			c.ID(), pod.KillGrace, errdefs.ErrUnavailable)
	}
}

// abort cancels a container that does not run yet. Instead of waiting for a start under way, it
// makes the start fail, unless it is too late for that.
func (b *stops) abort(ctx context.Context, c *pod.Container) error {
	bounded, cancel := context.WithTimeout(ctx, pod.KillGrace)
	defer cancel()
	again := time.NewTicker(task.AbortInterval)
	defer again.Stop()
	for !c.Op.TryLock() {
		// A supervisor treats this signal as a request to abort the start.
		err := b.signal(bounded, c, unix.SIGKILL, true)
		if err != nil && bounded.Err() == nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-bounded.Done():
			return fmt.Errorf("the start of container %s does not finish; check its runtime: %w", c.ID(), errdefs.ErrUnavailable)
		}
	}
	defer c.Op.Unlock()
	b.cancel(ctx, c)
	return nil
}

// cancel makes c EXITED if it was never started. c.Op is held.
func (b *stops) cancel(ctx context.Context, c *pod.Container) {
	if c.Status().Phase != pod.PhaseCreated {
		return
	}
	c.Record(ctx, func(st *pod.ContainerStatus) {
		st.Phase, st.ExitCode, st.Reason = pod.PhaseExited, 128+int32(unix.SIGKILL), "Error"
		st.Message = "the container was stopped before it was started"
		st.FinishedAt = b.Pods.Clock.Now()
	})
	b.Events.Announce(c.ID(), c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	close(c.Exited) // last: it permits removal, which is announced after the exit
	b.ends.endRestore(c)
	go b.ends.EraseExited(c)
}

func (b *stops) kill(ctx context.Context, c *pod.Container, sig syscall.Signal, all bool) error {
	b.Binaries.Runtimes.EnsureForStop(c.Sandbox)
	client, err := c.Sandbox.Runner.Client(ctx)
	if err != nil {
		return err
	}
	_, err = client.Task.Kill(ctx, &taskapi.KillRequest{ID: c.ID(), Signal: uint32(sig), All: all})
	return task.FromShim(err)
}

func (b *stops) signal(ctx context.Context, c *pod.Container, sig syscall.Signal, all bool) error {
	err := b.kill(ctx, c, sig, all)
	if shim.Lost(err) || b.Tasks.Replaced(ctx, c.Sandbox, err) {
		err = b.kill(ctx, c, sig, all) // by a supervisor's successor
	}
	switch {
	case err == nil, errdefs.IsNotFound(err), errdefs.IsFailedPrecondition(err):
		return nil // it has exited; the watcher is about to record it
	case shim.Lost(err):
		return nil // the watcher records the exit if the shim is dead
	}
	return fmt.Errorf("signal container %s: %w", c.ID(), err)
}

// RemoveContainer removes a container, and kills it first if it runs. Its log belongs to the
// kubelet and stays. A missing container is no error.
func (b *stops) RemoveContainer(ctx context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := b.Pods.Index.Container(r.GetContainerId())
	if errdefs.IsNotFound(err) {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := b.Remove(ctx, c); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (b *stops) Remove(ctx context.Context, c *pod.Container) error {
	if err := b.End(ctx, c); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	select {
	case <-c.Erased:
	case <-ctx.Done():
		return ctx.Err()
	}
	b.Hooks.Plugins.StopContainer(ctx, b.Hooks.Container(c))
	if err := c.Op.Lock(ctx); err != nil {
		return err
	}
	defer c.Op.Unlock()
	if _, err := b.Pods.Index.Container(c.ID()); errdefs.IsNotFound(err) {
		return nil // another call removed it
	}
	if !c.Status().Erased {
		if err := b.ends.EraseTask(ctx, c); err != nil {
			return err
		}
	}
	b.Hooks.Plugins.RemoveContainer(ctx, b.Hooks.Container(c))
	if err := b.ends.RemoveParts(ctx, c); err != nil {
		return err
	}
	failpoint.Hit(failpoint.ContainerErased)
	if err := b.Pods.Containers.Delete(c.ID()); err != nil {
		return err
	}
	b.Pods.Index.DropContainer(c.ID())
	b.Pods.Labels.Release(c.Spec().ProcessLabel)
	b.Pods.Names.Release(reserve.ContainerName(c.Sandbox.ID(), c.Config().GetMetadata()), c.ID())
	b.Events.Announce(c.ID(), c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}
