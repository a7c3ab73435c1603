package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/step"
)

type runs struct {
	Deps
	processes *processes
	stops     *stops
}

// RunPodSandbox creates and starts a sandbox under the Definition in ctx. The sandbox is READY when
// it returns. After an error nothing is left or, if roll-back failed, the sandbox is listed as
// NOTREADY.
func (b *runs) RunPodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	return b.run(ctx, r, &pod.Origin{})
}

// RestorePodSandbox is RunPodSandbox for a pod with processes that continue from a checkpoint when
// the last container is started.
func (b *runs) RestorePodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest, from *pod.Origin) (*runtimeapi.RunPodSandboxResponse, error) {
	return b.run(ctx, r, from)
}

func (b *runs) binariesOf(ctx context.Context, d *handler.Definition, from *pod.Origin) (*probe.Runtime, []keep.Binary, func(), error) {
	if from.Binaries == nil {
		return b.Binaries.Copies.ForPod(ctx, d)
	}
	return b.Binaries.Copies.Reuse(ctx, d, from.Binaries)
}

func (b *runs) run(ctx context.Context, r *runtimeapi.RunPodSandboxRequest, from *pod.Origin) (*runtimeapi.RunPodSandboxResponse, error) {
	d := handler.DefinitionFrom(ctx)
	if d == nil {
		return nil, errors.New("the sandbox has no handler definition")
	}
	if err := validate.RunPodSandbox(r); err != nil {
		return nil, err
	}
	rt, binaries, release, err := b.binariesOf(ctx, d, from)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := b.Capabilities.CheckSandbox(ctx, r.GetConfig(), d, rt); err != nil {
		return nil, err
	}
	pinned, err := b.Settings.Pin(d)
	if err != nil {
		return nil, err
	}
	pinned.Binaries, pinned.Generation = binaries, handler.GenerationFrom(ctx)
	id := pod.NewID()
	spec := b.planned(id, r, d, rt, pinned, from)
	connected, err := b.connection(ctx, id, &spec)
	if err != nil {
		return nil, err
	}
	s, err := b.record(id, spec)
	if err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.SandboxReserved)
	if err := b.bringUp(ctx, s, connected); err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.SandboxReady)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// planned returns the record of a sandbox before it is created. Pure.
func (b *runs) planned(id string, r *runtimeapi.RunPodSandboxRequest, d *handler.Definition, rt *probe.Runtime, pinned pod.Pinned, from *pod.Origin) pod.SandboxSpec {
	tools := &b.Binaries.Tools
	spec := pod.SandboxSpec{
		Handler: r.GetRuntimeHandler(), Definition: d, Plan: pod.NewPlan(r.GetConfig(), d, rt), Boot: b.Pods.Boot, Pinned: pinned,
		Supervisor: task.SupervisorKey(d, pinned.Binaries, tools.SupervisorHash, id), Checkpoint: from.Images,
	}
	spec.Config.Msg = r.GetConfig()
	if spec.Plan.Process {
		spec.Pinned.PauseRoot = filepath.Base(tools.PauseRoot)
	}
	return spec
}

// connection returns the pod's network attachment, or nil for the host's network. It fails before
// anything is created if the node has no network for the pod, or the network does not support the
// pod's settings.
func (b *runs) connection(ctx context.Context, id string, spec *pod.SandboxSpec) (*network.Pod, error) {
	if !spec.Plan.Net {
		return nil, nil //nolint:nilnil // host network
	}
	if spec.Definition.CNIConfDir == "" {
		if err := b.Network.Ready(ctx); err != nil {
			return nil, err
		}
	}
	return network.PodFrom(id, spec.Config.Msg, spec.Definition.CNIConfDir)
}

// record reserves the sandbox's name and labels, and writes its record.
func (b *runs) record(id string, spec pod.SandboxSpec) (*pod.Sandbox, error) {
	config := spec.Config.Msg
	name := reserve.SandboxName(config.GetMetadata())
	err := b.Pods.Names.Reserve(name, id)
	if err != nil {
		return nil, b.Pods.Index.ExplainTaken(err)
	}
	spec.CreatedAt = b.Pods.Clock.Now()
	var o *store.Object[pod.SandboxSpec, pod.SandboxStatus]
	spec.ProcessLabel, spec.MountLabel, err = ocispec.SELinuxLabels(config.GetLinux().GetSecurityContext().GetSelinuxOptions(), "")
	b.Pods.Labels.Hold(spec.ProcessLabel)
	if err == nil {
		o, err = b.Pods.Sandboxes.Create(id, spec, pod.SandboxStatus{}, store.Durable)
	}
	if err != nil {
		b.Pods.Labels.Release(spec.ProcessLabel)
		b.Pods.Names.Release(name, id)
		return nil, err
	}
	return pod.NewSandbox(o, b.Tasks), nil
}

// bringUp creates all parts of s, and publishes it. It rolls back on error.
func (b *runs) bringUp(ctx context.Context, s *pod.Sandbox, connected *network.Pod) error {
	b.Shims.Hold(s.Spec().Supervisor)
	err := b.MakeParts(ctx, s, connected)
	if err == nil {
		starting, end := step.Begin(ctx, step.Runtime)
		err = b.processes.Start(starting, s)
		end(err)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		asking, end := step.Begin(ctx, step.Plugins)
		err = b.Hooks.Plugins.RunPodSandbox(asking, b.Hooks.Pod(s), func() error { return b.show(s) })
		end(err)
	}
	if err != nil {
		return b.rollBack(s, err)
	}
	if s.Spec().Plan.Process {
		go b.processes.Watch(s)
	}
	b.Events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	b.Events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return nil
}

// show makes s READY and visible to all callers.
func (b *runs) show(s *pod.Sandbox) error {
	err := s.Update(func(st *pod.SandboxStatus) error { st.Phase = pod.PhaseReady; return nil })
	if err == nil {
		b.Pods.Index.AddSandbox(s)
	}
	return err
}

// rollBack removes s after cause. If that fails too, s is listed as NOTREADY, so that the kubelet
// stops and removes it; otherwise its address would leak.
func (b *runs) rollBack(s *pod.Sandbox, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Pods.Background), pod.UndoTimeout)
	defer cancel()
	err := b.stops.TearDown(ctx, s)
	if err == nil {
		err = b.stops.Forget(s)
	}
	if err == nil {
		return cause
	}
	log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Error("Failed to roll back partially created sandbox; listed as NotReady")
	s.Record(ctx, func(st *pod.SandboxStatus) { st.Phase = pod.PhaseStopped })
	b.Pods.Index.AddSandbox(s)
	return cause
}

// MakeParts creates independent parts concurrently: the network, the sandbox's files, the
// supervisor. A nil connected leaves the pod without a network, or with the host's.
func (b *runs) MakeParts(ctx context.Context, s *pod.Sandbox, connected *network.Pod) error {
	if err := s.Spec().Plan.MakePodDir(b.Pods.SandboxDir(s.ID())); err != nil {
		return fmt.Errorf("sandbox directory: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.makeNetwork(gctx, s, connected) })
	g.Go(func() error { return b.makeFiles(s) })
	g.Go(func() error {
		preparing, end := step.Begin(gctx, step.Runtime)
		err := s.Runner.Prepare(preparing)
		end(err)
		return err
	})
	return g.Wait()
}

// makeNetwork creates the namespaces and connects the pod.
func (b *runs) makeNetwork(ctx context.Context, s *pod.Sandbox, connected *network.Pod) error {
	spec := s.Spec()
	if !spec.Plan.Net && !spec.Plan.IPC && !spec.Plan.UTS && spec.Plan.User == nil {
		return nil // all shared with the host
	}
	if spec.Plan.Net {
		ShareNetns(ctx) // netnsDir may have been unmounted
	}
	netPath := filepath.Join(netnsDir, "berth-"+s.ID()[:32]) // CNI daemons that run in pods look for network namespaces there
	ns, err := namespaces.Create(ctx, spec.Plan.NamespaceRequest(b.Pods.NsDir(s.ID()), netPath, ocispec.Sysctls(spec.Config.Msg, b.Settings.Node)))
	if err != nil {
		return err
	}
	if err := s.Update(func(st *pod.SandboxStatus) error {
		st.Namespaces, st.Tried = *ns, connected != nil
		return nil
	}); err != nil {
		return err
	}
	failpoint.Hit(failpoint.SandboxNamespaces)
	if connected == nil {
		return nil
	}
	connected.NetNS = ns.Net
	connecting, end := step.Begin(ctx, step.Network)
	result, err := b.Network.Setup(connecting, *connected)
	end(err)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	failpoint.Hit(failpoint.SandboxNetworked)
	return s.Update(func(st *pod.SandboxStatus) error { st.Network = result; return nil })
}

// netnsDir is the node's common directory of named network namespaces.
const netnsDir = "/run/netns"

// ShareNetns makes netnsDir a shared mount, as other tools do: if it is shared from the start, no
// tool has to change it while pods run.
func ShareNetns(ctx context.Context) {
	if err := mountpoint.Share(netnsDir); err != nil {
		log.G(ctx).WithError(err).WithField("path", netnsDir).Warn("Failed to share directory; containers may not see network namespaces there")
	}
}

// PreflightPodSandbox rejects a pod if the handler of the Definition in ctx cannot run it. It
// accepts a pod if the runtime does not answer: RunPodSandbox checks again, and reports the
// runtime.
func (b *runs) PreflightPodSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig) error {
	d := handler.DefinitionFrom(ctx)
	rt, err := b.Binaries.Prober.Probe(ctx, d)
	if err != nil {
		return nil
	}
	return b.Capabilities.CheckSandbox(ctx, c, d, rt)
}
