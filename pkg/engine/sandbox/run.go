package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pin"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/handler"
)

// sandboxRuns makes sandboxes.
type Runs struct {
	pod.Layout
	Background context.Context // ends with the engine
	Boot       string          // this boot of the node, by the kernel's random id
	Objects    *pod.Index
	Names      *reserve.Names
	Labels     *reserve.Labels
	Clock      *pod.Clock
	Records    *pod.SandboxRecords
	Abilities  *capabilities.Checker
	Settings   *settings.Settings
	Binaries   *binaries.Copies
	Tools      binaries.Tools
	Prober     binaries.Prober
	Cni        podNetwork
	Shims      generations
	Processes  *Processes
	Stops      *Stops
	Events     *events.Announcer
	Hooks      *hooks.Hooks
	Plugins    *nri.Plugins // nil unless there can be any
}

// podNetwork connects pods.
type podNetwork interface {
	Status() error
	Setup(ctx context.Context, pod network.Pod) (*network.Result, error)
}

// generations are the supervisors of pods, each kept as long as somebody holds it.
type generations interface {
	container.Supervisors
	Hold(key string)
}

// RunPodSandbox creates and starts a sandbox under the Definition in ctx. It
// answers when the sandbox is READY; after an error nothing is left, or, if
// something could not be taken back, the sandbox is listed NOTREADY.
func (b *Runs) RunPodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	d := handler.DefinitionFrom(ctx)
	if d == nil {
		return nil, errors.New("a sandbox was routed here without a handler's definition")
	}
	if err := validate.RunPodSandbox(r); err != nil {
		return nil, err
	}
	rt, binaries, release, err := b.Binaries.ForPod(ctx, d)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := b.Abilities.CheckSandbox(ctx, r.GetConfig(), d, rt); err != nil {
		return nil, err
	}
	plan := pod.NewPlan(r.GetConfig(), d, rt)
	if err := b.needNetwork(plan, d); err != nil {
		return nil, err
	}
	kept, err := b.Settings.Pin(d)
	if err != nil {
		return nil, err
	}
	kept.Binaries, kept.Generation = binaries, handler.GenerationFrom(ctx)
	if plan.Process {
		kept.PauseRoot = filepath.Base(b.Tools.PauseRoot)
	}
	id := pod.NewID()
	// What the network cannot make sense of must not be found out half-way.
	if _, err := network.PodFrom(id, r.GetConfig(), netPath(id), r.GetConfig().GetLinux().GetCgroupParent()); plan.Net && err != nil {
		return nil, err
	}
	name := reserve.SandboxName(r.GetConfig().GetMetadata())
	if err := b.Names.Reserve(name, id); err != nil {
		return nil, b.Objects.Taken(err)
	}
	spec := pod.SandboxSpec{
		Handler:    r.GetRuntimeHandler(),
		Definition: d,
		CreatedAt:  b.Clock.Now(),
		Supervisor: task.SupervisorKey(d, binaries, b.Tools.SupervisorHash, id),
		Plan:       plan,
		Pinned:     kept,
		Boot:       b.Boot,
	}
	spec.Config.Msg = r.GetConfig()
	spec.ProcessLabel, spec.MountLabel, err = ocispec.SELinuxLabels(r.GetConfig().GetLinux().GetSecurityContext().GetSelinuxOptions(), "")
	if err != nil {
		b.Names.Release(name, id)
		return nil, err
	}
	b.Labels.Hold(spec.ProcessLabel)
	o, err := b.Records.Create(id, spec, pod.SandboxStatus{}, store.Durable)
	if err != nil {
		b.Labels.Release(spec.ProcessLabel)
		b.Names.Release(name, id)
		return nil, err
	}
	failpoint.Hit(failpoint.SandboxReserved)
	s := pod.NewSandbox(o)
	if err := b.bringUp(ctx, s); err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.SandboxReady)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// needNetwork fails early, before anything is made, when the pod needs a network
// and there is none to be had.
func (b *Runs) needNetwork(p pod.Plan, d *handler.Definition) error {
	if !p.Net || d.CNIConfDir != "" {
		return nil
	}
	return b.Cni.Status()
}

// bringUp makes everything that s consists of, and shows it. On error it takes
// everything back.
func (b *Runs) bringUp(ctx context.Context, s *pod.Sandbox) error {
	b.Shims.Hold(s.Spec().Supervisor)
	err := b.MakeParts(ctx, s)
	if err == nil {
		err = b.Processes.Start(ctx, s)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = b.Plugins.RunPodSandbox(ctx, b.Hooks.Pod(s), func() error { return b.show(s) })
	}
	if err != nil {
		return b.rollBack(s, err)
	}
	if s.Spec().Plan.Process {
		go b.Processes.Watch(s)
	}
	b.Events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	b.Events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return nil
}

// show makes s READY for everybody to see.
func (b *Runs) show(s *pod.Sandbox) error {
	err := s.Update(func(st *pod.SandboxStatus) error { st.Phase = pod.PhaseReady; return nil })
	if err == nil {
		b.Objects.AddSandbox(s)
	}
	return err
}

// rollBack takes s back after cause. If that fails too, s is shown NOTREADY, so
// that the kubelet stops and removes it; forgetting it would leak its address.
func (b *Runs) rollBack(s *pod.Sandbox, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Background), pod.UndoTimeout)
	defer cancel()
	err := b.Stops.TearDown(ctx, s)
	if err == nil {
		err = b.Stops.Forget(s)
	}
	if err == nil {
		return cause
	}
	log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Error("a failed sandbox could not be taken back; it is listed as not ready")
	s.Record(ctx, func(st *pod.SandboxStatus) { st.Phase = pod.PhaseStopped })
	b.Objects.AddSandbox(s)
	return cause
}

// makeParts makes what does not depend on each other at the same time: the
// network, the sandbox's files, the supervisor.
func (b *Runs) MakeParts(ctx context.Context, s *pod.Sandbox) error {
	if err := s.Spec().Plan.MakePodDir(b.SandboxDir(s.ID())); err != nil {
		return fmt.Errorf("sandbox directory: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.makeNetwork(gctx, s) })
	g.Go(func() error { return b.makeFiles(s) })
	if s.Spec().Definition.Type == handler.OCI {
		g.Go(func() error {
			_, err := b.Shims.Supervisor(gctx, s.Spec().Supervisor)
			return err
		})
	}
	return g.Wait()
}

// makeNetwork pins the namespaces and connects the pod.
func (b *Runs) makeNetwork(ctx context.Context, s *pod.Sandbox) error {
	spec := s.Spec()
	sysctls, err := ocispec.Sysctls(spec.Config.Msg, b.Settings.Node)
	if err != nil {
		return err
	}
	if !spec.Plan.Net && !spec.Plan.IPC && !spec.Plan.UTS && spec.Plan.User == nil {
		return nil // the pod shares all of them with the host
	}
	if spec.Plan.Net {
		ShareNetns(ctx) // somebody may have unmounted it
	}
	ns, err := pin.Create(ctx, spec.Plan.PinRequest(b.NsDir(s.ID()), netPath(s.ID()), sysctls))
	if err != nil {
		return err
	}
	if err := s.Update(func(st *pod.SandboxStatus) error {
		st.Namespaces, st.Tried = *ns, spec.Plan.Net && !spec.Canary
		return nil
	}); err != nil {
		return err
	}
	failpoint.Hit(failpoint.SandboxPinned)
	if !spec.Plan.Net || spec.Canary {
		return nil
	}
	p, err := b.networkPod(s)
	if err != nil {
		return err
	}
	result, err := b.Cni.Setup(ctx, p)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	failpoint.Hit(failpoint.SandboxNetworked)
	return s.Update(func(st *pod.SandboxStatus) error { st.Network = result; return nil })
}

func (b *Runs) networkPod(s *pod.Sandbox) (network.Pod, error) {
	p, err := network.PodFrom(s.ID(), s.Config(), s.Status().Namespaces.Net, s.Config().GetLinux().GetCgroupParent())
	p.CNIConfDir = s.Spec().Definition.CNIConfDir
	return p, err
}

// netPath is where CNI daemons that run in pods look for network namespaces.
func netPath(id string) string { return filepath.Join(netnsDir, "berth-"+id[:32]) }

// netnsDir is used by everybody on the node who names network namespaces.
const netnsDir = "/run/netns"

// shareNetns lets others do with netnsDir what they do with it anyway: what it is
// from the start no tool needs to make of it while pods are there.
func ShareNetns(ctx context.Context) {
	if err := mountpoint.Share(netnsDir); err != nil {
		log.G(ctx).WithError(err).WithField("path", netnsDir).Warn("Failed to share a directory; what runs in pods may not see network namespaces there")
	}
}

// PreflightPodSandbox refuses a pod that asks for what the handler of the
// Definition in ctx cannot give it. RunPodSandbox does the same, with what it
// then finds; a runtime that does not answer is for it to tell.
func (b *Runs) PreflightPodSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig) error {
	d := handler.DefinitionFrom(ctx)
	rt, err := b.Prober.Probe(ctx, d)
	if err != nil {
		return nil
	}
	return b.Abilities.CheckSandbox(ctx, c, d, rt)
}
