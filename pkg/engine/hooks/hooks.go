// Package hooks shows sandboxes and containers to the plugins of the Node Resource
// Interface, and tells them what happens to those.
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

// Subjects show sandboxes and containers to plugins.
type Subjects struct {
	pods *pod.Registry
}

// NewSubjects shows those of pods.
func NewSubjects(pods *pod.Registry) *Subjects { return &Subjects{pods} }

// Hooks tell plugins what happens to subjects.
type Hooks struct {
	*Subjects
	// Plugins is nil unless there can be any, and may be called all the same.
	Plugins *nri.Plugins
}

// New tells plugins, if there can be any.
func New(s *Subjects, plugins *nri.Plugins) *Hooks { return &Hooks{s, plugins} }

// subject is a sandbox, or a container, as NRI plugins are told of it.
type subject struct {
	*Subjects
	sandbox *pod.Sandbox
	of      *pod.Container // nil for a sandbox
	spec    *specs.Spec    // of a container that has no bundle yet
}

// Pod is a sandbox as plugins see it.
func (h *Subjects) Pod(s *pod.Sandbox) nri.Subject { return subject{Subjects: h, sandbox: s} }

// Container is a container as plugins see it.
func (h *Subjects) Container(c *pod.Container) nri.Subject {
	return subject{Subjects: h, sandbox: c.Sandbox, of: c}
}

// Planned is a container that has no bundle yet.
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
		// A path that cannot be made up kept the sandbox from being run.
		p.CgroupsPath, _ = spec.CgroupsPath(t.sandbox.ID())
	}
	return p
}

// existing is the path of a namespace, or nothing once it is released.
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
		// It is CREATED to whom learns of it before its creation has ended.
		facts.State = api.ContainerState_CONTAINER_CREATED
	}
	if facts.Spec == nil {
		s, err := pod.ReadSpec(t.pods.ContainerDir(c.ID()))
		if err != nil {
			log.G(t.pods.Background).WithError(err).WithField("container", c.ID()).Warn("Failed to read container spec; NRI plugins are told of the container without it")
		}
		facts.Spec = s
	}
	return facts
}
