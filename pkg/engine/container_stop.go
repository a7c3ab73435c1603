package engine

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
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// stops are of containers, for a while or for good.
type stops struct {
	background context.Context // ends with the engine
	objects    *objects
	names      *reserve.Names
	labels     *reserve.Labels
	clock      *clock
	records    *containerRecords
	events     *announcer
	runtimes   *runtimes
	tasks      *tasks
	ends       *ends
	hooks      *hooks
	plugins    *nri.Plugins // nil unless there can be any
}

// StopContainer ends a container: its stop signal, and after timeout seconds
// SIGKILL. It answers when the container is EXITED. Overlapping calls do not
// wait for each other. Missing and ended containers are fine.
func (b *stops) StopContainer(ctx context.Context, r *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := b.objects.container(r.GetContainerId())
	if errdefs.IsNotFound(err) {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	// A caller that gives up must not leave half a stop: the container was, or was
	// to be, told to end, and would live on because nobody waits for it.
	stopped := make(chan error, 1)
	go func() { stopped <- b.stopOn(ctx, c, graceOf(r.GetTimeout())) }()
	select {
	case err = <-stopped:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	b.plugins.StopContainer(ctx, b.hooks.container(c))
	return &runtimeapi.StopContainerResponse{}, nil
}

// stopOn stops c also when the caller leaves. It ends with the engine; a kubelet
// that still wants the container stopped asks again.
func (b *stops) stopOn(ctx context.Context, c *container, grace time.Duration) error {
	working, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(b.background, cancel)()
	err := b.stop(working, c, grace)
	if err == nil && c.sharesProcesses() {
		err = c.awaitErased(working)
	}
	if err != nil && ctx.Err() != nil && b.background.Err() == nil {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn("end a container whose stop was given up")
	}
	return err
}

// sharesProcesses tells whether processes of c may outlive its first one: nothing
// but the runtime's removal ends them.
func (c *container) sharesProcesses() bool {
	return c.config().GetLinux().GetSecurityContext().GetNamespaceOptions().GetPid() != runtimeapi.NamespaceMode_CONTAINER
}

// awaitErased waits for what follows the end, with a bound: what is still there
// then is tried again at the removal.
func (c *container) awaitErased(ctx context.Context) error {
	t := time.NewTimer(killGrace)
	defer t.Stop()
	select {
	case <-c.erased:
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// graceOf turns the seconds of a request into a time that can be added to.
func graceOf(seconds int64) time.Duration {
	const longest = 365 * 24 * 60 * 60
	return time.Duration(min(max(seconds, 0), longest)) * time.Second
}

func (b *stops) stop(ctx context.Context, c *container, grace time.Duration) error {
	if grace == 0 {
		return b.end(ctx, c)
	}
	if c.Status().Phase == phaseCreated {
		// A start may be under way: what comes of it gets its signal and its time.
		if err := b.withdraw(ctx, c, grace); err != nil {
			return err
		}
	}
	if c.Status().Phase == phaseRunning {
		if err := b.signal(ctx, c, c.stopSignal(), false); err != nil {
			return err
		}
		failpoint.Hit(failpoint.ContainerStopped)
		if done, err := c.awaitEnd(ctx, grace); done || err != nil {
			return err
		}
	}
	return b.end(ctx, c)
}

// withdraw ends a container that was not started, unless a start is under way and
// comes to its end, or to none within d.
func (b *stops) withdraw(ctx context.Context, c *container, d time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if err := c.op.lock(bounded); err != nil {
		return ctx.Err()
	}
	defer c.op.unlock()
	b.cancel(ctx, c)
	return nil
}

// stopSignal was chosen when the container was created.
func (c *container) stopSignal() syscall.Signal {
	s, _ := ocispec.StopSignal(c.config(), c.Spec().StopSignal)
	return s
}

// awaitEnd waits until c is EXITED, or the time is up.
func (c *container) awaitEnd(ctx context.Context, d time.Duration) (bool, error) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.exited:
		return true, nil
	case <-t.C:
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// end makes c EXITED now. One that never ran becomes so without a process.
func (b *stops) end(ctx context.Context, c *container) error {
	for {
		switch c.Status().Phase {
		case phaseExited:
			return nil
		case phaseCreated:
			if err := b.abort(ctx, c); err != nil {
				return err
			}
			continue // it may have been started
		}
		if err := b.signal(ctx, c, unix.SIGKILL, true); err != nil {
			return err
		}
		if done, err := c.awaitEnd(ctx, killGrace); done || err != nil {
			return err
		}
		return fmt.Errorf("container %s does not die: it was sent SIGKILL %s ago, look for processes in uninterruptible sleep: %w",
			c.ID(), killGrace, errdefs.ErrUnavailable)
	}
}

// abortInterval is how often a start that is under way is told to end.
const abortInterval = 200 * time.Millisecond

// abort ends a container that does not run yet. A start that is under way is not
// waited for, but made to fail; it may be too late for that.
func (b *stops) abort(ctx context.Context, c *container) error {
	bounded, cancel := context.WithTimeout(ctx, killGrace)
	defer cancel()
	again := time.NewTicker(abortInterval)
	defer again.Stop()
	for !c.op.lockNow() {
		// Who starts it takes this for the order to give up.
		err := b.signal(bounded, c, unix.SIGKILL, true)
		if err != nil && bounded.Err() == nil {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-bounded.Done():
			return fmt.Errorf("container %s is being started, and that does not end: look at its runtime: %w", c.ID(), errdefs.ErrUnavailable)
		}
	}
	defer c.op.unlock()
	b.cancel(ctx, c)
	return nil
}

// cancel ends c if it was never started. It needs c.op.
func (b *stops) cancel(ctx context.Context, c *container) {
	if c.Status().Phase != phaseCreated {
		return
	}
	c.force(ctx, func(st *containerStatus) {
		st.Phase, st.ExitCode, st.Reason = phaseExited, 128+int32(unix.SIGKILL), "Error"
		st.Message = "the container was stopped before it was started"
		st.FinishedAt = b.clock.now()
	})
	b.events.announce(c.ID(), c.sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	close(c.exited) // only now may somebody remove it, and announce that
	go b.ends.eraseEnded(c)
}

func (b *stops) kill(ctx context.Context, c *container, sig syscall.Signal, all bool) error {
	b.runtimes.mend(c.sandbox)
	client, err := b.tasks.client(ctx, c.sandbox)
	if err != nil {
		return err
	}
	_, err = client.Task.Kill(ctx, &taskapi.KillRequest{ID: c.ID(), Signal: uint32(sig), All: all})
	return fromShim(err)
}

// signal sends a signal to the container's first process, or to all.
func (b *stops) signal(ctx context.Context, c *container, sig syscall.Signal, all bool) error {
	err := b.kill(ctx, c, sig, all)
	if shim.Lost(err) {
		err = b.kill(ctx, c, sig, all) // by a supervisor's successor
	}
	switch {
	case err == nil, errdefs.IsNotFound(err), errdefs.IsFailedPrecondition(err):
		return nil // it has ended; the watcher is about to say so
	case shim.Lost(err):
		return nil // awaitEnd tells whether it ended with its shim
	}
	return fmt.Errorf("signal container %s: %w", c.ID(), err)
}

// RemoveContainer removes a container, killing it if it runs. Its log stays:
// that is the kubelet's. A missing one is fine.
func (b *stops) RemoveContainer(ctx context.Context, r *runtimeapi.RemoveContainerRequest) (*runtimeapi.RemoveContainerResponse, error) {
	c, err := b.objects.container(r.GetContainerId())
	if errdefs.IsNotFound(err) {
		return &runtimeapi.RemoveContainerResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := b.remove(ctx, c); err != nil {
		return nil, err
	}
	return &runtimeapi.RemoveContainerResponse{}, nil
}

func (b *stops) remove(ctx context.Context, c *container) error {
	if err := b.end(ctx, c); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	select {
	case <-c.erased:
	case <-ctx.Done():
		return ctx.Err()
	}
	b.plugins.StopContainer(ctx, b.hooks.container(c))
	if err := c.op.lock(ctx); err != nil {
		return err
	}
	defer c.op.unlock()
	if _, err := b.objects.container(c.ID()); errdefs.IsNotFound(err) {
		return nil // somebody else removed it
	}
	if !c.Status().Erased {
		if err := b.ends.eraseTask(ctx, c); err != nil {
			return err
		}
	}
	b.plugins.RemoveContainer(ctx, b.hooks.container(c))
	if err := b.ends.removeParts(ctx, c); err != nil {
		return err
	}
	failpoint.Hit(failpoint.ContainerErased)
	if err := b.records.Delete(c.ID()); err != nil {
		return err
	}
	b.objects.dropContainer(c.ID())
	b.labels.Release(c.Spec().ProcessLabel)
	b.names.Release(reserve.ContainerName(c.sandbox.ID(), c.config().GetMetadata()), c.ID())
	b.events.announce(c.ID(), c.sandbox, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	return nil
}
