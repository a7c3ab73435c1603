package engine

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
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/pin"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
)

// sandboxStops ends and removes sandboxes.
type sandboxStops struct {
	layout
	background context.Context // ends with the engine
	objects    *objects
	names      *reserve.Names
	labels     *reserve.Labels
	records    *sandboxRecords
	settings   *settings
	binaries   *binaries
	collector  *collector
	residue    *residue
	tools      tools
	network    disconnecter
	shims      releaser
	processes  *sandboxProcesses
	inside     *stops
	events     *announcer
	hooks      *hooks
	plugins    *nri.Plugins // nil unless there can be any
}

// disconnecter gives the network of a pod back.
type disconnecter interface {
	Teardown(ctx context.Context, pod network.Pod, was *network.Result) error
}

// releaser takes back that a pod needs its supervisor.
type releaser interface{ Release(key string) }

// StopPodSandbox ends every process of the pod and gives its network back.
// Missing and stopped sandboxes are fine. CRI: containers end up EXITED.
func (b *sandboxStops) StopPodSandbox(ctx context.Context, r *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s, err := b.objects.sandbox(r.GetPodSandboxId())
	if errdefs.IsNotFound(err) {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.op.lock(ctx); err != nil {
		return nil, err
	}
	defer s.op.unlock()
	if err := b.stop(ctx, s); err != nil {
		return nil, err
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

// stop needs s.op.
func (b *sandboxStops) stop(ctx context.Context, s *sandbox) error {
	wasReady := s.Status().Phase == phaseReady
	if s.Status().Stopped {
		return nil // it was stopped whole before
	}
	s.force(ctx, func(st *sandboxStatus) { st.Stopping = true })
	if err := b.endMaking(ctx, s); err != nil {
		return err
	}
	if err := b.endInside(ctx, s); err != nil {
		return err
	}
	b.plugins.StopPodSandbox(ctx, b.hooks.pod(s))
	failpoint.Hit(failpoint.SandboxStopped)
	if err := b.tearDown(ctx, s); err != nil {
		return err
	}
	s.force(ctx, func(st *sandboxStatus) { st.Phase, st.PID, st.Stopped = phaseStopped, 0, true })
	if wasReady && !s.Spec().Plan.Process {
		b.events.announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return nil
}

// endInside ends the containers of s. A foreign shim that does not do so in time is
// killed, and with it all that it runs the pod in: nobody else can end that.
func (b *sandboxStops) endInside(ctx context.Context, s *sandbox) error {
	if s.Spec().Definition.Type != handler.Shim {
		return b.endContainers(ctx, s)
	}
	end := func(ctx context.Context) error { return b.endContainers(ctx, s) }
	err := s.insist(ctx, end, func(error) bool { return false })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return nil
	}
	log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Warn("Killing shim that does not end its containers")
	if err := b.processes.killShim(ctx, s, shim.ErrGone); err != nil {
		return fmt.Errorf("kill its shim: %w", err)
	}
	return within(ctx, buryTimeout, end)
}

// within calls f with a bound.
func within(ctx context.Context, bound time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return f(ctx)
}

// endContainers returns when no container of s runs, and the shim has forgotten them.
func (b *sandboxStops) endContainers(ctx context.Context, s *sandbox) error {
	inside := b.objects.containersOf(s.ID())
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range inside {
		g.Go(func() error {
			err := b.inside.end(gctx, c)
			if err == nil {
				b.plugins.StopContainer(gctx, b.hooks.container(c))
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return awaitErased(ctx, s, inside)
}

// makingGrace is how long a stop waits for calls that make containers. They were
// told to end, and their roll-back is bounded by that of the shim's create call.
const makingGrace = createPatience + 5*time.Second

// endMaking lets no container come to be in s any more.
func (b *sandboxStops) endMaking(ctx context.Context, s *sandbox) error {
	bounded, cancel := context.WithTimeout(ctx, makingGrace)
	defer cancel()
	err := s.making.shut(bounded)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("a container is still being created in sandbox %s, and does not come to an end: try again: %w", s.ID(), errdefs.ErrUnavailable)
	}
	return err
}

// tearDown undoes bringUp, however far that came. It may be repeated, and works
// after a reboot, when namespaces, mounts and processes are gone.
func (b *sandboxStops) tearDown(ctx context.Context, s *sandbox) error {
	if err := b.processes.stop(ctx, s); err != nil {
		return err
	}
	if err := b.disconnect(ctx, s); err != nil {
		return err
	}
	// What is busy is no hindrance: nothing of the pod is in there, and forget tries again.
	if err := pin.Release(b.nsDir(s.ID())); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("namespaces: %w", err)
	}
	if err := mountpoint.Unmount(b.filesOf(s.ID()).shm); err != nil {
		return err
	}
	removeCgroup(ctx, s, b.settings.of(s.Spec()).CgroupDriver)
	return nil
}

// disconnect gives the pod's network back.
func (b *sandboxStops) disconnect(ctx context.Context, s *sandbox) error {
	st := s.Status()
	if !st.Tried {
		return nil
	}
	pod := attachedPod(s)
	if !pin.Exists(st.Namespaces.Net) {
		pod.NetNS = "" // CNI: the address is released all the same
	}
	if err := b.network.Teardown(ctx, pod, st.Network); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	s.force(ctx, func(st *sandboxStatus) { st.Tried = false })
	return nil
}

// attachedPod is all that disconnecting needs of a pod; the rest is in the
// result of connecting it.
func attachedPod(s *sandbox) network.Pod {
	m := s.config().GetMetadata()
	return network.Pod{
		ID: s.ID(), Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUid(),
		NetNS: s.Status().Namespaces.Net, CNIConfDir: s.Spec().Definition.CNIConfDir,
	}
}

// force records a step of the way down. That must go on even on a full disk:
// removing things is how it gets empty again. Each step may be repeated, so a
// restarted daemon that does not know of one does it again.
func (s *sandbox) force(ctx context.Context, change func(*sandboxStatus)) {
	if err := s.Force(change); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Error("record the stop of a sandbox")
	}
}

// removeCgroup removes the sandbox process's own cgroup. The pod's is the kubelet's.
func removeCgroup(ctx context.Context, s *sandbox, driver cgroup.Driver) {
	path, err := cgroup.Path(driver, s.config().GetLinux().GetCgroupParent(), s.ID())
	if err == nil {
		err = cgroup.HostPaths(path).Remove(ctx)
	}
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Debug("remove a leftover cgroup")
	}
}

// RemovePodSandbox removes the sandbox and all its containers, stopping what
// still runs. A missing one is fine.
func (b *sandboxStops) RemovePodSandbox(ctx context.Context, r *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s, err := b.objects.sandbox(r.GetPodSandboxId())
	if errdefs.IsNotFound(err) {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.op.lock(ctx); err != nil {
		return nil, err
	}
	defer s.op.unlock()
	if _, err := b.objects.sandbox(s.ID()); errdefs.IsNotFound(err) {
		return &runtimeapi.RemovePodSandboxResponse{}, nil // somebody else removed it
	}
	if err := b.stop(ctx, s); err != nil && !errdefs.IsNotFound(err) {
		return nil, err
	}
	for _, c := range b.objects.containersOf(s.ID()) {
		if err := b.inside.remove(ctx, c); err != nil {
			return nil, err
		}
	}
	b.events.announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	if err := b.forget(s); err != nil {
		return nil, err
	}
	b.plugins.RemovePodSandbox(ctx, b.hooks.pod(s))
	b.objects.dropSandbox(s.ID())
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

// forget removes what is left of a torn down sandbox, its record last.
func (b *sandboxStops) forget(s *sandbox) error {
	if err := b.residue.erase(b.sandboxDir(s.ID()), func() error { return b.eraseSandbox(s.ID()) }); err != nil {
		return err
	}
	failpoint.Hit(failpoint.SandboxErased)
	if err := b.records.Delete(s.ID()); err != nil {
		return err
	}
	b.shims.Release(s.Spec().Supervisor)
	b.labels.Release(s.Spec().ProcessLabel)
	b.names.Release(reserve.SandboxName(s.config().GetMetadata()), s.ID())
	if len(s.Spec().binaries()) > 0 {
		b.binaries.collectSoon()
	}
	if p := s.Spec().Pinned; p != nil && p.PauseRoot != "" && p.PauseRoot != filepath.Base(b.tools.pauseRoot) {
		go b.collector.collect()
	}
	return nil
}
