package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pin"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/handler"
)

// sandboxRuns makes sandboxes.
type sandboxRuns struct {
	layout
	background context.Context // ends with the engine
	boot       string          // this boot of the node, by the kernel's random id
	objects    *objects
	names      *reserve.Names
	labels     *reserve.Labels
	clock      *clock
	records    *sandboxRecords
	abilities  *abilities
	settings   *settings
	binaries   *binaries
	tools      tools
	prober     prober
	cni        podNetwork
	shims      generations
	processes  *sandboxProcesses
	stops      *sandboxStops
	events     *announcer
	hooks      *hooks
	plugins    *nri.Plugins // nil unless there can be any
}

// podNetwork connects pods.
type podNetwork interface {
	Status() error
	Setup(ctx context.Context, pod network.Pod) (*network.Result, error)
}

// generations are the supervisors of pods, each kept as long as somebody holds it.
type generations interface {
	supervisors
	Hold(key string)
}

// RunPodSandbox creates and starts a sandbox under the Definition in ctx. It
// answers when the sandbox is READY; after an error nothing is left, or, if
// something could not be taken back, the sandbox is listed NOTREADY.
func (b *sandboxRuns) RunPodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	d := handler.DefinitionFrom(ctx)
	if d == nil {
		return nil, errors.New("a sandbox was routed here without a handler's definition")
	}
	if err := validate.RunPodSandbox(r); err != nil {
		return nil, err
	}
	rt, binaries, release, err := b.binaries.ForPod(ctx, d)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := b.abilities.checkSandbox(ctx, r.GetConfig(), d, rt); err != nil {
		return nil, err
	}
	plan := planSandbox(r.GetConfig(), d, rt)
	if err := b.needNetwork(plan, d); err != nil {
		return nil, err
	}
	kept, err := b.settings.pin(d)
	if err != nil {
		return nil, err
	}
	kept.Binaries, kept.Generation = binaries, handler.GenerationFrom(ctx)
	if plan.Process {
		kept.PauseRoot = filepath.Base(b.tools.pauseRoot)
	}
	id := newID()
	// What the network cannot make sense of must not be found out half-way.
	if _, err := network.PodFrom(id, r.GetConfig(), netPath(id), r.GetConfig().GetLinux().GetCgroupParent()); plan.Net && err != nil {
		return nil, err
	}
	name := reserve.SandboxName(r.GetConfig().GetMetadata())
	if err := b.names.Reserve(name, id); err != nil {
		return nil, b.objects.taken(err)
	}
	spec := sandboxSpec{
		Handler:    r.GetRuntimeHandler(),
		Definition: d,
		CreatedAt:  b.clock.now(),
		Supervisor: supervisorKey(d, binaries, b.tools.supervisorHash, id),
		Plan:       plan,
		Pinned:     kept,
		Boot:       b.boot,
	}
	spec.Config.msg = r.GetConfig()
	spec.ProcessLabel, spec.MountLabel, err = ocispec.SELinuxLabels(r.GetConfig().GetLinux().GetSecurityContext().GetSelinuxOptions(), "")
	if err != nil {
		b.names.Release(name, id)
		return nil, err
	}
	b.labels.Hold(spec.ProcessLabel)
	o, err := b.records.Create(id, spec, sandboxStatus{}, store.Durable)
	if err != nil {
		b.labels.Release(spec.ProcessLabel)
		b.names.Release(name, id)
		return nil, err
	}
	failpoint.Hit(failpoint.SandboxReserved)
	s := newSandbox(o)
	if err := b.bringUp(ctx, s); err != nil {
		return nil, err
	}
	failpoint.Hit(failpoint.SandboxReady)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// needNetwork fails early, before anything is made, when the pod needs a network
// and there is none to be had.
func (b *sandboxRuns) needNetwork(p sandboxPlan, d *handler.Definition) error {
	if !p.Net || d.CNIConfDir != "" {
		return nil
	}
	return b.cni.Status()
}

// bringUp makes everything that s consists of, and shows it. On error it takes
// everything back.
func (b *sandboxRuns) bringUp(ctx context.Context, s *sandbox) error {
	b.shims.Hold(s.Spec().Supervisor)
	err := b.makeParts(ctx, s)
	if err == nil {
		err = b.processes.start(ctx, s)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = b.plugins.RunPodSandbox(ctx, b.hooks.pod(s), func() error { return b.show(s) })
	}
	if err != nil {
		return b.rollBack(s, err)
	}
	if s.Spec().Plan.Process {
		go b.processes.watch(s)
	}
	b.events.announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	b.events.announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	return nil
}

// show makes s READY for everybody to see.
func (b *sandboxRuns) show(s *sandbox) error {
	err := s.Update(func(st *sandboxStatus) error { st.Phase = phaseReady; return nil })
	if err == nil {
		b.objects.addSandbox(s)
	}
	return err
}

// rollBack takes s back after cause. If that fails too, s is shown NOTREADY, so
// that the kubelet stops and removes it; forgetting it would leak its address.
func (b *sandboxRuns) rollBack(s *sandbox, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.background), undoTimeout)
	defer cancel()
	err := b.stops.tearDown(ctx, s)
	if err == nil {
		err = b.stops.forget(s)
	}
	if err == nil {
		return cause
	}
	log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Error("a failed sandbox could not be taken back; it is listed as not ready")
	s.force(ctx, func(st *sandboxStatus) { st.Phase = phaseStopped })
	b.objects.addSandbox(s)
	return cause
}

// makeParts makes what does not depend on each other at the same time: the
// network, the sandbox's files, the supervisor.
func (b *sandboxRuns) makeParts(ctx context.Context, s *sandbox) error {
	if err := s.Spec().Plan.makePodDir(b.sandboxDir(s.ID())); err != nil {
		return fmt.Errorf("sandbox directory: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.makeNetwork(gctx, s) })
	g.Go(func() error { return b.makeFiles(s) })
	if s.Spec().Definition.Type == handler.OCI {
		g.Go(func() error {
			_, err := b.shims.Supervisor(gctx, s.Spec().Supervisor)
			return err
		})
	}
	return g.Wait()
}

// makeNetwork pins the namespaces and connects the pod.
func (b *sandboxRuns) makeNetwork(ctx context.Context, s *sandbox) error {
	spec := s.Spec()
	sysctls, err := ocispec.Sysctls(spec.Config.msg, b.settings.node)
	if err != nil {
		return err
	}
	if !spec.Plan.Net && !spec.Plan.IPC && !spec.Plan.UTS && spec.Plan.User == nil {
		return nil // the pod shares all of them with the host
	}
	if spec.Plan.Net {
		shareNetns(ctx) // somebody may have unmounted it
	}
	ns, err := pin.Create(ctx, spec.Plan.pinRequest(b.nsDir(s.ID()), netPath(s.ID()), sysctls))
	if err != nil {
		return err
	}
	if err := s.Update(func(st *sandboxStatus) error {
		st.Namespaces, st.Tried = *ns, spec.Plan.Net && !spec.Canary
		return nil
	}); err != nil {
		return err
	}
	failpoint.Hit(failpoint.SandboxPinned)
	if !spec.Plan.Net || spec.Canary {
		return nil
	}
	pod, err := b.networkPod(s)
	if err != nil {
		return err
	}
	result, err := b.cni.Setup(ctx, pod)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	failpoint.Hit(failpoint.SandboxNetworked)
	return s.Update(func(st *sandboxStatus) error { st.Network = result; return nil })
}

func (b *sandboxRuns) networkPod(s *sandbox) (network.Pod, error) {
	pod, err := network.PodFrom(s.ID(), s.config(), s.Status().Namespaces.Net, s.config().GetLinux().GetCgroupParent())
	pod.CNIConfDir = s.Spec().Definition.CNIConfDir
	return pod, err
}

// netPath is where CNI daemons that run in pods look for network namespaces.
func netPath(id string) string { return filepath.Join(netnsDir, "berth-"+id[:32]) }

// netnsDir is used by everybody on the node who names network namespaces.
const netnsDir = "/run/netns"

// shareNetns lets others do with netnsDir what they do with it anyway: what it is
// from the start no tool needs to make of it while pods are there.
func shareNetns(ctx context.Context) {
	if err := mountpoint.Share(netnsDir); err != nil {
		log.G(ctx).WithError(err).WithField("path", netnsDir).Warn("Failed to share a directory; what runs in pods may not see network namespaces there")
	}
}
