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
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/step"
)

// runs makes sandboxes.
type runs struct {
	pods         *pod.Registry
	binaries     *binaries.Binaries
	hooks        *hooks.Hooks
	capabilities *capabilities.Checker
	settings     *settings.Settings
	tasks        pod.Binder
	cni          *network.Plugins
	shims        generations
	processes    *processes
	stops        *stops
	events       *events.Announcer
}

// generations are the supervisors of pods, each kept as long as somebody holds it.
type generations interface {
	Supervisor(ctx context.Context, key string) (*shim.Client, error)
	Hold(key string)
}

// RunPodSandbox creates and starts a sandbox under the Definition in ctx. It
// answers when the sandbox is READY; after an error nothing is left, or, if
// something could not be taken back, the sandbox is listed NOTREADY.
func (b *runs) RunPodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	return b.run(ctx, r, nil)
}

// RestorePodSandbox is RunPodSandbox for a pod whose processes go on from a checkpoint. They
// do so when the last of its containers is started.
func (b *runs) RestorePodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest, from *pod.Origin) (*runtimeapi.RunPodSandboxResponse, error) {
	return b.run(ctx, r, from)
}

func (b *runs) binariesOf(ctx context.Context, d *handler.Definition, from *pod.Origin) (*probe.Runtime, []keep.Binary, func(), error) {
	if from == nil || from.Binaries == nil {
		return b.binaries.Copies.ForPod(ctx, d)
	}
	return b.binaries.Copies.Again(ctx, d, from.Binaries)
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
	id := pod.NewID()
	spec, connected, err := b.plan(ctx, id, r, d, rt)
	if err != nil {
		return nil, err
	}
	spec.Pinned.Binaries = binaries
	spec.Supervisor = task.SupervisorKey(d, binaries, b.binaries.Tools.SupervisorHash, id)
	if from != nil {
		spec.Checkpoint, spec.ByContainer = from.Images, from.ByContainer
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

// plan refuses what cannot be run, and returns what is decided about a sandbox before it
// exists, and how it is connected to the network; nil is for a pod with the host's. It
// changes nothing.
func (b *runs) plan(ctx context.Context, id string, r *runtimeapi.RunPodSandboxRequest, d *handler.Definition, rt *probe.Runtime) (spec pod.SandboxSpec, connected *network.Pod, err error) {
	if err := b.capabilities.CheckSandbox(ctx, r.GetConfig(), d, rt); err != nil {
		return spec, nil, err
	}
	spec = pod.SandboxSpec{
		Handler: r.GetRuntimeHandler(), Definition: d, CreatedAt: b.pods.Clock.Now(), Plan: pod.NewPlan(r.GetConfig(), d, rt), Boot: b.pods.Boot,
	}
	spec.Config.Msg = r.GetConfig()
	if err := b.needNetwork(ctx, spec.Plan, d); err != nil {
		return spec, nil, err
	}
	if spec.Pinned, err = b.settings.Pin(d); err != nil {
		return spec, nil, err
	}
	spec.Pinned.Generation = handler.GenerationFrom(ctx)
	if spec.Plan.Process {
		spec.Pinned.PauseRoot = filepath.Base(b.binaries.Tools.PauseRoot)
	}
	if spec.Plan.Net {
		if connected, err = network.PodFrom(id, r.GetConfig(), netPath(id), d.CNIConfDir); err != nil {
			return spec, nil, err
		}
	}
	spec.ProcessLabel, spec.MountLabel, err = ocispec.SELinuxLabels(r.GetConfig().GetLinux().GetSecurityContext().GetSelinuxOptions(), "")
	return spec, connected, err
}

// record reserves what belongs to one sandbox only, and writes it down.
func (b *runs) record(id string, spec pod.SandboxSpec) (*pod.Sandbox, error) {
	name := reserve.SandboxName(spec.Config.Msg.GetMetadata())
	if err := b.pods.Names.Reserve(name, id); err != nil {
		return nil, b.pods.Index.Taken(err)
	}
	b.pods.Labels.Hold(spec.ProcessLabel)
	o, err := b.pods.Sandboxes.Create(id, spec, pod.SandboxStatus{}, store.Durable)
	if err != nil {
		b.pods.Labels.Release(spec.ProcessLabel)
		b.pods.Names.Release(name, id)
		return nil, err
	}
	return pod.NewSandbox(o, b.tasks), nil
}

// needNetwork fails early, before anything is made, when the pod needs a network
// and there is none to be had.
func (b *runs) needNetwork(ctx context.Context, p pod.Plan, d *handler.Definition) error {
	if !p.Net || d.CNIConfDir != "" {
		return nil
	}
	return b.cni.Ready(ctx)
}

// bringUp makes everything that s consists of, and shows it. On error it takes
// everything back.
func (b *runs) bringUp(ctx context.Context, s *pod.Sandbox, connected *network.Pod) error {
	b.shims.Hold(s.Spec().Supervisor)
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
		err = b.hooks.Plugins.RunPodSandbox(asking, b.hooks.Pod(s), func() error { return b.show(s) })
		end(err)
	}
	if err != nil {
		return b.rollBack(s, err)
	}
	if s.Spec().Plan.Process {
		go b.processes.Watch(s)
	}
	b.events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	b.events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return nil
}

// show makes s READY for everybody to see.
func (b *runs) show(s *pod.Sandbox) error {
	err := s.Update(func(st *pod.SandboxStatus) error { st.Phase = pod.PhaseReady; return nil })
	if err == nil {
		b.pods.Index.AddSandbox(s)
	}
	return err
}

// rollBack takes s back after cause. If that fails too, s is shown NOTREADY, so
// that the kubelet stops and removes it; forgetting it would leak its address.
func (b *runs) rollBack(s *pod.Sandbox, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.pods.Background), pod.UndoTimeout)
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
	b.pods.Index.AddSandbox(s)
	return cause
}

// MakeParts makes what does not depend on each other at the same time: the
// network, the sandbox's files, the supervisor. A nil connected leaves the pod without
// a network, or with the host's.
func (b *runs) MakeParts(ctx context.Context, s *pod.Sandbox, connected *network.Pod) error {
	if err := s.Spec().Plan.MakePodDir(b.pods.SandboxDir(s.ID())); err != nil {
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

// makeNetwork pins the namespaces and connects the pod.
func (b *runs) makeNetwork(ctx context.Context, s *pod.Sandbox, connected *network.Pod) error {
	spec := s.Spec()
	if !spec.Plan.Net && !spec.Plan.IPC && !spec.Plan.UTS && spec.Plan.User == nil {
		return nil // the pod shares all of them with the host
	}
	if spec.Plan.Net {
		ShareNetns(ctx) // somebody may have unmounted it
	}
	ns, err := namespaces.Create(ctx, spec.Plan.NamespaceRequest(b.pods.NsDir(s.ID()), netPath(s.ID()), ocispec.Sysctls(spec.Config.Msg, b.settings.Node)))
	if err != nil {
		return err
	}
	if err := s.Update(func(st *pod.SandboxStatus) error {
		st.Namespaces, st.Tried = *ns, connected != nil
		return nil
	}); err != nil {
		return err
	}
	failpoint.Hit(failpoint.SandboxPinned)
	if connected == nil {
		return nil
	}
	connecting, end := step.Begin(ctx, step.Network)
	result, err := b.cni.Setup(connecting, *connected)
	end(err)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	failpoint.Hit(failpoint.SandboxNetworked)
	return s.Update(func(st *pod.SandboxStatus) error { st.Network = result; return nil })
}

// netPath is where CNI daemons that run in pods look for network namespaces.
func netPath(id string) string { return filepath.Join(netnsDir, "berth-"+id[:32]) }

// netnsDir is used by everybody on the node who names network namespaces.
const netnsDir = "/run/netns"

// ShareNetns lets others do with netnsDir what they do with it anyway: what it is
// from the start no tool needs to make of it while pods are there.
func ShareNetns(ctx context.Context) {
	if err := mountpoint.Share(netnsDir); err != nil {
		log.G(ctx).WithError(err).WithField("path", netnsDir).Warn("Failed to share directory; containers may not see network namespaces there")
	}
}

// PreflightPodSandbox refuses a pod that asks for what the handler of the
// Definition in ctx cannot give it. RunPodSandbox does the same, with what it
// then finds; a runtime that does not answer is for it to tell.
func (b *runs) PreflightPodSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig) error {
	d := handler.DefinitionFrom(ctx)
	rt, err := b.binaries.Prober.Probe(ctx, d)
	if err != nil {
		return nil
	}
	return b.capabilities.CheckSandbox(ctx, c, d, rt)
}
