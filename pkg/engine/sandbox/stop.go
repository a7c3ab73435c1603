package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/step"
)

// stops serves stop and removal of sandboxes.
type stops struct {
	Deps
	processes *processes
}

// StopPodSandbox stops every process of the pod and releases its network. Missing and stopped
// sandboxes are not an error. The containers become EXITED (CRI).
func (b *stops) StopPodSandbox(ctx context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	err := b.end(ctx, r.GetPodSandboxId(), func(s *pod.Sandbox) error { return b.stop(ctx, s) })
	return &runtimeapi.StopPodSandboxResponse{}, err
}

// end calls f, which stops or removes a sandbox, while it holds the sandbox's lock. A missing
// sandbox is not an error. end aborts a checkpoint of the pod and prevents new ones: a large
// checkpoint takes minutes, and must not delay the pod's stop.
func (b *stops) end(ctx context.Context, id string, f func(s *pod.Sandbox) error) error {
	s, err := b.Pods.Index.Sandbox(id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	s.Ending.Add(1)
	defer s.Ending.Add(-1)
	if giveUp := s.Writing.Load(); giveUp != nil {
		(*giveUp)()
	}
	if err := s.Op.Lock(ctx); err != nil {
		return err
	}
	defer s.Op.Unlock()
	return f(s)
}

// stop is called with s.Op held.
func (b *stops) stop(ctx context.Context, s *pod.Sandbox) error {
	wasReady := s.Status().Phase == pod.PhaseReady
	if s.Status().Stopped {
		return nil // it was stopped completely
	}
	s.Record(ctx, func(st *pod.SandboxStatus) { st.Stopping = true })
	if err := b.endMaking(ctx, s); err != nil {
		return err
	}
	if err := s.Runner.StopOrKill(ctx, func(ctx context.Context) error { return b.endContainers(ctx, s) }); err != nil {
		return err
	}
	b.Hooks.Plugins.StopPodSandbox(ctx, b.Hooks.Pod(s))
	failpoint.Hit(failpoint.SandboxStopped)
	if err := b.TearDown(ctx, s); err != nil {
		return err
	}
	s.Record(ctx, func(st *pod.SandboxStatus) { st.Phase, st.PID, st.Stopped = pod.PhaseStopped, 0, true })
	if wasReady && !s.Spec().Plan.Process {
		b.Events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return nil
}

// endContainers returns when no container of s runs. It waits a limited time for a foreign shim to
// delete their tasks: the end of the shim removes the rest.
func (b *stops) endContainers(ctx context.Context, s *pod.Sandbox) error {
	inside := b.Pods.Index.ContainersOf(s.ID())
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range inside {
		g.Go(func() error {
			err := b.Containers.End(gctx, c)
			if err == nil {
				b.Hooks.Plugins.StopContainer(gctx, b.Hooks.Container(c))
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if !s.OwnShim() {
		return nil
	}
	for _, c := range inside {
		if err := c.AwaitErased(ctx); err != nil {
			return err
		}
	}
	return nil
}

// makingGrace is how long a stop waits for calls that create containers. They were aborted before,
// so only their roll-back is left, which may wait for the shim's create call.
const makingGrace = pod.CreatePatience + 5*time.Second

// endMaking prevents further creation of containers in s.
func (b *stops) endMaking(ctx context.Context, s *pod.Sandbox) error {
	bounded, cancel := context.WithTimeout(ctx, makingGrace)
	defer cancel()
	err := s.Making.Shut(bounded)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("a container is still being created in sandbox %s; try again: %w", s.ID(), errdefs.ErrUnavailable)
	}
	return err
}

// TearDown undoes bringUp, which may have failed at any step. It is idempotent, and works after a
// reboot, when namespaces, mounts and processes are gone.
func (b *stops) TearDown(ctx context.Context, s *pod.Sandbox) error {
	if err := b.processes.stop(ctx, s); err != nil {
		return err
	}
	if err := b.disconnect(ctx, s); err != nil {
		return err
	}
	// A busy mount is not a failure: no process of the pod uses it, and Forget tries again.
	if err := namespaces.Release(b.Pods.NsDir(s.ID())); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("namespaces: %w", err)
	}
	if err := mountpoint.Unmount(b.Pods.FilesOf(s.ID()).Shm); err != nil {
		return err
	}
	b.removeCgroup(ctx, s)
	return nil
}

// disconnect releases the pod's network.
func (b *stops) disconnect(ctx context.Context, s *pod.Sandbox) error {
	st := s.Status()
	if !st.Tried {
		return nil
	}
	p := AttachedPod(s)
	if !namespaces.Exists(st.Namespaces.Net) {
		p.NetNS = "" // CNI: the address is still released
	}
	disconnecting, end := step.Begin(ctx, step.Network)
	err := b.Network.Teardown(disconnecting, p, st.Network)
	if end(err); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	s.Record(ctx, func(st *pod.SandboxStatus) { st.Tried = false })
	return nil
}

// AttachedPod returns what is needed to disconnect s, besides the result of connecting it.
func AttachedPod(s *pod.Sandbox) network.Pod {
	m := s.Config().GetMetadata()
	return network.Pod{
		ID: s.ID(), Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUid(),
		NetNS: s.Status().Namespaces.Net, CNIConfDir: s.Spec().Definition.CNIConfDir,
	}
}

// removeCgroup removes the sandbox process's own cgroup. The kubelet removes the pod's.
func (b *stops) removeCgroup(ctx context.Context, s *pod.Sandbox) {
	path, err := s.Spec().CgroupsPath(s.ID())
	if err == nil {
		err = cgroup.HostPaths(path).Remove(ctx)
	}
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Debug("Failed to remove leftover cgroup")
	}
}

// RemovePodSandbox stops and removes the sandbox and all its containers. A missing sandbox is not
// an error.
func (b *stops) RemovePodSandbox(ctx context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	err := b.end(ctx, r.GetPodSandboxId(), func(s *pod.Sandbox) error { return b.remove(ctx, s) })
	return &runtimeapi.RemovePodSandboxResponse{}, err
}

// remove is called with s.Op held.
func (b *stops) remove(ctx context.Context, s *pod.Sandbox) error {
	if _, err := b.Pods.Index.Sandbox(s.ID()); errdefs.IsNotFound(err) {
		return nil // another call removed it
	}
	if err := b.stop(ctx, s); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	for _, c := range b.Pods.Index.ContainersOf(s.ID()) {
		if err := b.Containers.Remove(ctx, c); err != nil {
			return err
		}
	}
	b.Events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	if err := b.Forget(s); err != nil {
		return err
	}
	b.Hooks.Plugins.RemovePodSandbox(ctx, b.Hooks.Pod(s))
	b.Pods.Index.DropSandbox(s.ID())
	return nil
}

// Forget removes the files of a torn down sandbox, its record last.
func (b *stops) Forget(s *pod.Sandbox) error {
	if err := b.Rootfs.Residue.Erase(b.Pods.SandboxDir(s.ID()), func() error { return rootfs.EraseSandbox(b.Pods.Layout, s.ID()) }); err != nil {
		return err
	}
	failpoint.Hit(failpoint.SandboxErased)
	if err := b.Pods.Sandboxes.Delete(s.ID()); err != nil {
		return err
	}
	b.Shims.Release(s.Spec().Supervisor)
	b.Pods.Labels.Release(s.Spec().ProcessLabel)
	b.Pods.Names.Release(reserve.SandboxName(s.Config().GetMetadata()), s.ID())
	if len(s.Spec().Pinned.Binaries) > 0 {
		b.Binaries.Copies.CollectSoon()
	}
	if p := s.Spec().Pinned; p.PauseRoot != "" && p.PauseRoot != filepath.Base(b.Binaries.Tools.PauseRoot) {
		go b.Binaries.Collector.Collect()
	}
	return nil
}
