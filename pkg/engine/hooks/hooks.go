// Package hooks presents sandboxes and containers to the plugins of the Node Resource Interface
// (NRI), and reports their events.
package hooks

import (
	"cmp"
	"strings"

	"github.com/containerd/log"
	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// Subjects presents sandboxes and containers to plugins.
type Subjects struct {
	pods *pod.Registry
}

// NewSubjects presents the sandboxes and containers of pods.
func NewSubjects(pods *pod.Registry) *Subjects { return &Subjects{pods} }

// Hooks reports events of subjects to plugins.
type Hooks struct {
	*Subjects
	// Plugins is nil if plugins are disabled; its methods accept nil.
	Plugins *nri.Plugins
}

// New returns the Hooks of plugins, which may be nil.
func New(s *Subjects, plugins *nri.Plugins) *Hooks { return &Hooks{s, plugins} }

// subject is a sandbox or a container in the form of the NRI.
type subject struct {
	*Subjects
	sandbox *pod.Sandbox
	of      *pod.Container // nil for a sandbox
	spec    *specs.Spec    // of a container without a bundle
}

// Pod returns a sandbox's subject.
func (h *Subjects) Pod(s *pod.Sandbox) nri.Subject { return subject{Subjects: h, sandbox: s} }

// Container returns a container's subject.
func (h *Subjects) Container(c *pod.Container) nri.Subject {
	return subject{Subjects: h, sandbox: c.Sandbox, of: c}
}

// Planned returns the subject of a container that has no bundle yet.
func (h *Subjects) Planned(c *pod.Container, spec *specs.Spec) nri.Subject {
	return subject{Subjects: h, sandbox: c.Sandbox, of: c, spec: spec}
}

func (t subject) ID() string {
	if t.of != nil {
		return t.of.ID()
	}
	return t.sandbox.ID()
}

func (t subject) Pod() nri.Pod {
	spec, st := t.sandbox.Spec(), t.sandbox.Status()
	p := nri.Pod{
		ID: t.sandbox.ID(), Handler: spec.Handler, Config: spec.Config.Msg, PID: st.PID, Stopped: st.Stopped,
		Overhead: st.Overhead.Msg, Resources: st.Resources.Msg,
	}
	p.Overhead = cmp.Or(p.Overhead, p.Config.GetLinux().GetOverhead())
	p.Resources = cmp.Or(p.Resources, p.Config.GetLinux().GetResources())
	ns := st.Namespaces
	p.UserNS, p.NetNS, p.IPCNS, p.UTSNS = existing(ns.User), existing(ns.Net), existing(ns.IPC), existing(ns.UTS)
	if st.Network != nil {
		p.IPs = st.Network.IPs
	}
	if spec.Plan.Process {
		// Without a valid path the sandbox would not have been run.
		p.CgroupsPath, _ = spec.CgroupsPath(t.sandbox.ID())
	}
	return p
}

// existing is the path of a namespace, or "" once it is released.
func existing(path string) string {
	if path == "" || !namespaces.Exists(path) {
		return ""
	}
	return path
}

func (t subject) Container() nri.Container {
	c := t.of
	spec, st := c.Spec(), c.Status()
	facts := nri.Container{
		ID: c.ID(), Sandbox: spec.Sandbox, Config: c.Config(), Spec: t.spec, State: nri.State(c.State()), PID: st.PID,
		CreatedAt: spec.CreatedAt, StartedAt: st.StartedAt, FinishedAt: st.FinishedAt,
		ExitCode: st.ExitCode, Reason: st.Reason, Message: st.Message,
		ImageName: spec.ImageName, ImageID: spec.ImageID,
	}
	_, facts.ImageDigest, _ = strings.Cut(spec.ImageRef, "@")
	if st.Phase == pod.PhasePlanned {
		// Plugins see a container as CREATED while it is being created.
		facts.State = api.ContainerState_CONTAINER_CREATED
	}
	if facts.Spec == nil {
		s, err := pod.ReadSpec(t.pods.ContainerDir(c.ID()))
		if err != nil {
			log.G(t.pods.Background).WithError(err).WithField("container", c.ID()).Warn("Failed to read container spec; NRI plugins see the container without it")
		}
		facts.Spec = s
	}
	return facts
}
