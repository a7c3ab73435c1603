package engine

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
)

// ends does what follows the end of a container: it is recorded and told, and
// what was there of the container goes.
type ends struct {
	layout
	background context.Context // ends with the engine
	clock      *clock
	events     *announcer
	logs       *logs
	runtimes   *runtimes
	tasks      *tasks
	exits      *exits
	burials    *burials
	mounts     *mounts
	residue    *residue
	hooks      *hooks
	plugins    *nri.Plugins // nil unless there can be any
	shims      keeper
}

// keeper holds what a task would lose with its supervisor.
type keeper interface{ Drop(supervisor, task string) }

// watch waits for the end of a running container and records it.
func (b *ends) watch(c *container) {
	exit, err := b.exits.await(c.sandbox, c.ID())
	if err != nil {
		return // the engine is closing
	}
	b.ended(c, exit)
}

// ended records the end of c, tells everybody, and lets the runtime forget it.
func (b *ends) ended(c *container, exit taskExit) {
	b.logs.flushLog(c)
	b.recordEnd(c, exit)
	if b.plugins != nil {
		go b.plugins.StopContainer(b.background, b.hooks.container(c)) // who removes c waits for it
	}
	b.eraseEnded(c)
}

// killedForMemory tells what a foreign shim may report too late, or to nobody:
// the cgroup's own count, which is there until the task is deleted.
func (b *ends) killedForMemory(c *container) bool {
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
func (b *ends) recordEnd(c *container, exit taskExit) {
	oom := exit.OOM || b.killedForMemory(c)
	err := c.Force(func(st *containerStatus) {
		if exit.Unknown {
			st.lostExit(exit.At)
			return
		}
		st.Phase, st.PID = phaseExited, 0
		st.ExitCode, st.Reason = int32(exit.Status), exitReason(int32(exit.Status), oom || c.oom.Load(), false)
		st.Message = printable.Line(exit.Why)
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

func (b *ends) eraseEnded(c *container) {
	ctx, cancel := context.WithTimeout(b.background, undoTimeout)
	defer cancel()
	b.erase(ctx, c)
}

// erase lets the runtime forget an ended container. What fails here is tried
// again when the daemon starts and when the container is removed.
func (b *ends) erase(ctx context.Context, c *container) {
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

// eraseTask kills what runs of c, and removes what the runtime and the log's
// writer have of it.
func (b *ends) eraseTask(ctx context.Context, c *container) error {
	if err := c.awaitCreated(ctx); err != nil {
		return err
	}
	b.runtimes.mend(c.sandbox)
	err := b.endTask(ctx, c)
	if lostShim(c.sandbox, err) {
		err = b.endTask(ctx, c) // the next connection tells whether the shim is gone
	}
	if lostShim(c.sandbox, err) {
		_, err = b.burials.bury(ctx, c.sandbox, c.ID(), err)
	}
	if err != nil {
		return err
	}
	b.shims.Drop(c.sandbox.Spec().Supervisor, c.ID())
	return b.logs.closeLog(ctx, c)
}

func (b *ends) endTask(ctx context.Context, c *container) error {
	client, err := b.tasks.client(ctx, c.sandbox)
	if err != nil {
		return err
	}
	return endTask(ctx, client, c.ID())
}

// removeParts removes what a container without a task consists of, however much
// of it there is.
func (b *ends) removeParts(ctx context.Context, c *container) error {
	group := cgroup.HostPaths(c.Spec().CgroupsPath)
	// Whoever ran the task may have lost it: what still runs is nobody's.
	if pids, err := group.Processes(); err == nil && len(pids) > 0 {
		if err := group.Kill(ctx); err != nil {
			return err
		}
	}
	if err := b.mounts.unmountParts(c.ID()); err != nil {
		return err
	}
	if err := b.mounts.removeRootfs(ctx, c); err != nil {
		return err
	}
	return errors.Join(
		group.Remove(ctx),
		removeRuntimeState(b.layout, c),
		b.residue.erase(b.containerDir(c.ID()), func() error { return b.mounts.eraseContainer(c.ID()) }),
	)
}

// removeRuntimeState removes what a runtime that was never told of the end may
// have written about c. A directory that the handler names is not ours.
func removeRuntimeState(l layout, c *container) error {
	if c.sandbox == nil || c.sandbox.Spec().Definition.Root != "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(l.runtimeRoot(c.sandbox.Spec().Definition), c.ID()))
}
