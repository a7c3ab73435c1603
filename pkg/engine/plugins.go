package engine

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/pin"
)

// hooks show sandboxes and containers to plugins.
type hooks struct {
	layout
	background context.Context // ends with the engine
	settings   *settings
}

func newHooks(background context.Context, l layout, s *settings) *hooks {
	return &hooks{l, background, s}
}

// subject is a sandbox, or a container, as NRI plugins are told of it.
type subject struct {
	*hooks
	sandbox   *sandbox
	container *container  // nil for a sandbox
	spec      *specs.Spec // of a container that has no bundle yet
}

func (h *hooks) pod(s *sandbox) nri.Subject { return subject{hooks: h, sandbox: s} }

func (h *hooks) container(c *container) nri.Subject {
	return subject{hooks: h, sandbox: c.sandbox, container: c}
}

func (t subject) ID() string {
	if t.container != nil {
		return t.container.ID()
	}
	return t.sandbox.ID()
}

func (t subject) Pod() nri.Pod {
	spec, st := t.sandbox.Spec(), t.sandbox.Status()
	p := nri.Pod{
		ID: t.sandbox.ID(), Handler: spec.Handler, Config: spec.Config.msg, PID: st.PID, Stopped: st.Stopped,
		Overhead: st.Overhead.msg, Resources: st.Resources.msg,
	}
	if p.Overhead == nil {
		p.Overhead = p.Config.GetLinux().GetOverhead()
	}
	if p.Resources == nil {
		p.Resources = p.Config.GetLinux().GetResources()
	}
	ns := st.Namespaces
	p.UserNS, p.NetNS, p.IPCNS, p.UTSNS = existing(ns.User), existing(ns.Net), existing(ns.IPC), existing(ns.UTS)
	if st.Network != nil {
		p.IPs = st.Network.IPs
	}
	if spec.Plan.Process {
		// A path that cannot be made up kept the sandbox from being run.
		p.CgroupsPath, _ = cgroup.Path(t.settings.of(spec).CgroupDriver, p.Config.GetLinux().GetCgroupParent(), t.sandbox.ID())
	}
	return p
}

// openPlugins opens the way for plugins; they are told who runs the pods.
func openPlugins(c nri.Config, l layout, version string, n nri.Node) (*nri.Plugins, error) {
	c.Name, c.Version, c.LinkDir = runtimeName, version, l.pluginLinks()
	return nri.Open(c, n)
}

// existing is the path of a namespace, or nothing once it is released.
func existing(path string) string {
	if path == "" || !pin.Exists(path) {
		return ""
	}
	return path
}

func (t subject) Container() nri.Container {
	c := t.container
	spec, st := c.Spec(), c.Status()
	facts := nri.Container{
		ID: c.ID(), Sandbox: spec.Sandbox, Config: c.config(), Spec: t.spec, State: nri.State(c.state()), PID: st.PID,
		CreatedAt: spec.CreatedAt, StartedAt: st.StartedAt, FinishedAt: st.FinishedAt,
		ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
		ImageName: spec.ImageName, ImageID: spec.ImageID,
	}
	_, facts.ImageDigest, _ = strings.Cut(spec.ImageRef, "@")
	if st.Phase == phasePlanned {
		// It is CREATED to whom learns of it before its creation has ended.
		facts.State = api.ContainerState_CONTAINER_CREATED
	}
	if facts.Spec == nil {
		s, err := readSpec(t.containerDir(c.ID()))
		if err != nil {
			log.G(t.background).WithError(err).WithField("container", c.ID()).Warn("NRI plugins are told of a container without its spec")
		}
		facts.Spec = s
	}
	return facts
}

// pluginNode is the engine as plugins may look at it and change it.
type pluginNode struct {
	objects   *objects
	hooks     *hooks
	resources *resources
}

func (n pluginNode) Pods() []nri.Subject {
	all := n.objects.allSandboxes()
	pods := make([]nri.Subject, 0, len(all))
	for _, s := range all {
		pods = append(pods, n.hooks.pod(s))
	}
	return pods
}

func (n pluginNode) Containers() []nri.Subject {
	all := n.objects.allContainers()
	containers := make([]nri.Subject, 0, len(all))
	for _, c := range all {
		containers = append(containers, n.hooks.container(c))
	}
	return containers
}

// UpdateContainer does what a plugin wants. One that ends meanwhile needs no
// limits any more; its lock is not waited for, as whoever has it may be waiting
// for plugins.
func (n pluginNode) UpdateContainer(ctx context.Context, id string, change *api.LinuxResources) error {
	c, err := n.objects.container(id)
	if errdefs.IsNotFound(err) || err == nil && c.Status().Phase == phaseExited {
		return nil
	}
	if err != nil {
		return err
	}
	err = n.resources.changeResources(ctx, c, nri.ToCRI(change), nri.Pids(change))
	if errors.Is(err, errEnded) {
		return nil
	}
	return err
}

// updateForPlugins asks plugins what is to be done in place of a request.
func (b *resizing) updateForPlugins(ctx context.Context, c *container, change *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, *int64, error) {
	wanted, err := b.plugins.UpdateContainer(ctx, b.hooks.container(c), change)
	if err != nil || wanted == nil {
		return change, nil, err
	}
	return nri.ToCRI(wanted), nri.Pids(wanted), nil
}
