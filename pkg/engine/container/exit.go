package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/printable"
)

// ends handles exits: it records and announces them, and cleans up.
type ends struct{ Deps }

// Watch waits for the exit of a running container and records it.
func (b *ends) Watch(c *pod.Container) {
	exit, err := b.Tasks.Await(c.Sandbox, c.ID())
	if err != nil {
		return // the engine is closing
	}
	b.exited(c, exit)
}

// exited records and announces the exit of c, and deletes its task.
func (b *ends) exited(c *pod.Container, exit pod.Exit) {
	// The log must be complete when clients see the exit.
	if err := c.Sandbox.Runner.FlushLog(b.Pods.Background, c); err != nil {
		log.G(b.Pods.Background).WithError(err).WithField("container", c.ID()).Debug("Failed to wait for the log of exited container")
	}
	b.RecordExit(c, exit)
	if b.Hooks.Plugins != nil {
		go b.Hooks.Plugins.StopContainer(b.Pods.Background, b.Hooks.Container(c)) // Remove waits for it
	}
	b.EraseExited(c)
}

// RecordExit makes c EXITED.
func (b *ends) RecordExit(c *pod.Container, exit pod.Exit) {
	// A foreign shim may report an OOM kill too late or not at all.
	killed := exit.OOM || c.OOM.Load() || c.Sandbox.Runner.KilledForMemory(b.Pods.Background, c.Spec().CgroupsPath)
	err := c.Force(func(st *pod.ContainerStatus) {
		oom := killed || c.OOM.Load()
		if exit.Unknown {
			st.LostExit(exit.At, oom)
			return
		}
		st.Phase, st.PID = pod.PhaseExited, 0
		st.ExitCode, st.Reason = int32(exit.Status), pod.ExitReason(int32(exit.Status), oom, false)
		st.Message = printable.Line(exit.Why)
		// The supervisor may observe the exit before the start is recorded here.
		st.FinishedAt = max(exit.At.UnixNano(), st.StartedAt)
	})
	if err != nil && !errdefs.IsNotFound(err) {
		log.G(b.Pods.Background).WithError(err).WithField("container", c.ID()).Error("Failed to record container exit")
	}
	b.Pods.Clock.Seen(exit.At.UnixNano())
	b.Events.Announce(c.ID(), c.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	close(c.Exited) // last: it permits removal, which is announced after the exit
}

// endRestore kills the sandbox of a restored pod, after c failed or was cancelled: the other
// containers would wait for c for ever.
func (b *ends) endRestore(c *pod.Container) {
	if c.Sandbox.Spec().Checkpoint == "" {
		return // c is not restored with its pod
	}
	ctx, cancel := context.WithTimeout(b.Pods.Background, pod.UndoTimeout)
	defer cancel()
	client, err := c.Sandbox.Runner.Client(ctx)
	if err == nil {
		_, err = client.Task.Kill(ctx, &taskapi.KillRequest{ID: c.Sandbox.ID(), Signal: uint32(unix.SIGKILL)})
		err = task.FromShim(err)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("sandbox", c.Sandbox.ID()).Warn("Failed to kill pod that cannot be restored; its containers wait until it is removed")
	}
}

func (b *ends) EraseExited(c *pod.Container) {
	ctx, cancel := context.WithTimeout(b.Pods.Background, pod.UndoTimeout)
	defer cancel()
	b.erase(ctx, c)
}

// erase deletes an exited container's task and mounts. Failures are retried when the daemon starts
// and when the container is removed.
func (b *ends) erase(ctx context.Context, c *pod.Container) {
	defer close(c.Erased)
	err := b.clean(ctx, c)
	if err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("container", c.ID()).Warn("Failed to clean up exited container; will retry")
	}
	if shim.IsUnresponsive(err) {
		go b.cleanOnceItAnswers(c)
	}
}

// clean is one attempt of erase.
func (b *ends) clean(ctx context.Context, c *pod.Container) error {
	// Persist first: the next step deletes the exit from the records of runtime and supervisor.
	if err := c.Persist(); err != nil {
		return err
	}
	if err := b.EraseTask(ctx, c); err != nil {
		return err
	}
	if err := errors.Join(b.Rootfs.UnmountParts(c.ID()), os.RemoveAll(b.Pods.RestoreDir(c.ID()))); err != nil {
		return err
	}
	return c.Force(func(st *pod.ContainerStatus) { st.Erased = true })
}

// cleanOnceItAnswers cleans up after an unresponsive shim has recovered: it may still run the
// processes of an exited container.
func (b *ends) cleanOnceItAnswers(c *pod.Container) {
	for b.Pods.Background.Err() == nil {
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(b.Pods.Background, pod.UndoTimeout)
		err := b.clean(ctx, c)
		cancel()
		if !shim.IsUnresponsive(err) {
			return
		}
	}
}

// EraseTask kills the processes of c, deletes its task and closes its log.
func (b *ends) EraseTask(ctx context.Context, c *pod.Container) error {
	if err := c.AwaitCreated(ctx); err != nil {
		return err
	}
	b.Binaries.Runtimes.EnsureForStop(c.Sandbox)
	if err := c.Sandbox.Runner.Delete(ctx, c.ID()); err != nil {
		return err
	}
	b.Tasks.Drop(c.Sandbox, c.ID())
	return c.Sandbox.Runner.CloseLog(ctx, c)
}

// RemoveParts removes all parts of a container except its task. Missing parts are no error.
func (b *ends) RemoveParts(ctx context.Context, c *pod.Container) error {
	group := cgroup.HostPaths(c.Spec().CgroupsPath)
	// A supervisor or shim that has lost the task leaves its processes running.
	if pids, err := group.Processes(); err == nil && len(pids) > 0 {
		if err := group.Kill(ctx); err != nil {
			return err
		}
	}
	if err := b.Rootfs.UnmountParts(c.ID()); err != nil {
		return err
	}
	if err := b.Images.RemoveRootfs(ctx, c.ID(), c.Spec().Snapshotter); err != nil {
		return fmt.Errorf("remove root filesystem: %w", err)
	}
	return errors.Join(
		group.Remove(ctx),
		os.RemoveAll(b.Pods.RestoreDir(c.ID())),
		removeRuntimeState(b.Pods.Layout, c),
		b.Rootfs.Residue.Erase(b.Pods.ContainerDir(c.ID()), func() error { return b.Rootfs.EraseContainer(c.ID()) }),
	)
}

// removeRuntimeState removes files about c that a runtime may have left because its delete was
// never called. A state directory that the handler configures is not berth's.
func removeRuntimeState(l pod.Layout, c *pod.Container) error {
	if c.Sandbox == nil || c.Sandbox.Spec().Definition.Root != "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(l.RuntimeRoot(c.Sandbox.Spec().Definition), c.ID()))
}

// FailedBefore records the failure of a start that an earlier daemon requested.
func (b *ends) FailedBefore(ctx context.Context, c *pod.Container) {
	c.Record(ctx, func(st *pod.ContainerStatus) { st.Failed(startError, errLostStart, b.Pods.Clock.Now()) })
	close(c.Exited)
	go func() {
		b.endRestore(c)
		b.EraseExited(c)
	}()
}

// Gone records that a created container can no longer be started.
func (b *ends) Gone(ctx context.Context, c *pod.Container) {
	c.Record(ctx, func(st *pod.ContainerStatus) { st.LostExit(time.Now(), false) })
	close(c.Exited)
	go b.EraseExited(c)
}
