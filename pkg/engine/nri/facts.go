package nri

import (
	"maps"
	"slices"

	"github.com/containerd/nri/pkg/api"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is what plugins receive of a sandbox. Values that the sandbox does not have are empty.
type Pod struct {
	ID string
	// Handler is the requested name of the handler.
	Handler string
	Config  *runtimeapi.PodSandboxConfig
	// Overhead and Resources are the latest values from the kubelet.
	Overhead, Resources *runtimeapi.LinuxContainerResources
	// UserNS, NetNS, IPCNS and UTSNS are the paths of the pod's own namespaces.
	UserNS, NetNS, IPCNS, UTSNS string
	// CgroupsPath and PID are those of the sandbox process, for pods that have one.
	CgroupsPath string
	PID         int
	IPs         []string
	// Stopped is set once StopPodSandbox has completed.
	Stopped bool
}

func (p Pod) stage() stage {
	if p.Stopped {
		return stopped
	}
	return running
}

// message copies the maps, because the answers of plugins may be merged into them.
func (p Pod) message() *api.PodSandbox {
	m := p.Config.GetMetadata()
	return &api.PodSandbox{
		Id: p.ID, Name: m.GetName(), Uid: m.GetUid(), Namespace: m.GetNamespace(),
		Labels: copied(p.Config.GetLabels()), Annotations: copied(p.Config.GetAnnotations()),
		RuntimeHandler: p.Handler,
		Linux: &api.LinuxPodSandbox{
			PodOverhead: fromCRI(p.Overhead), PodResources: fromCRI(p.Resources),
			CgroupParent: p.Config.GetLinux().GetCgroupParent(), CgroupsPath: p.CgroupsPath,
			Namespaces: p.namespaces(),
		},
		Pid: uint32(p.PID), //nolint:gosec // a pid
		Ips: p.IPs,
	}
}

func (p Pod) namespaces() []*api.LinuxNamespace {
	var all []*api.LinuxNamespace
	for _, ns := range []struct {
		kind specs.LinuxNamespaceType
		path string
	}{{specs.UserNamespace, p.UserNS}, {specs.NetworkNamespace, p.NetNS}, {specs.IPCNamespace, p.IPCNS}, {specs.UTSNamespace, p.UTSNS}} {
		if ns.path != "" {
			all = append(all, &api.LinuxNamespace{Type: string(ns.kind), Path: ns.path})
		}
	}
	return all
}

// Container is what plugins receive of a container.
type Container struct {
	ID, Sandbox string
	Config      *runtimeapi.ContainerConfig
	// Spec is the container's current spec; nil if it cannot be read.
	Spec  *specs.Spec
	State api.ContainerState
	PID   int
	// CreatedAt, StartedAt and FinishedAt are in nanoseconds; 0 means not yet.
	CreatedAt, StartedAt, FinishedAt int64
	ExitCode                         int32
	Reason, Message                  string
	// ImageName is the requested name, ImageDigest the digest of the manifest, ImageID that of the
	// configuration.
	ImageName, ImageDigest, ImageID string
}

// State converts a container's state to NRI's.
func State(s runtimeapi.ContainerState) api.ContainerState { return states[s] }

// states omits CONTAINER_UNKNOWN, which is NRI's zero value.
var states = map[runtimeapi.ContainerState]api.ContainerState{
	runtimeapi.ContainerState_CONTAINER_CREATED: api.ContainerState_CONTAINER_CREATED,
	runtimeapi.ContainerState_CONTAINER_RUNNING: api.ContainerState_CONTAINER_RUNNING,
	runtimeapi.ContainerState_CONTAINER_EXITED:  api.ContainerState_CONTAINER_STOPPED,
}

func (c Container) message() *api.Container {
	m := &api.Container{
		Id: c.ID, PodSandboxId: c.Sandbox, Name: c.Config.GetMetadata().GetName(),
		State:  c.State,
		Labels: copied(c.Config.GetLabels()), Annotations: copied(c.Config.GetAnnotations()),
		Linux:     &api.LinuxContainer{SeccompProfile: seccompProfile(c.Config)},
		Pid:       uint32(c.PID), //nolint:gosec // a pid
		CreatedAt: c.CreatedAt, StartedAt: c.StartedAt, FinishedAt: c.FinishedAt,
		ExitCode: c.ExitCode, StatusReason: c.Reason, StatusMessage: c.Message,
	}
	if c.ImageName != "" || c.ImageDigest != "" || c.ImageID != "" {
		m.Image = &api.Image{Name: c.ImageName, Digest: c.ImageDigest, ConfigDigest: c.ImageID}
	}
	for _, d := range c.Config.GetCDIDevices() {
		m.CDIDevices = append(m.CDIDevices, &api.CDIDevice{Name: d.GetName()})
	}
	if c.Spec != nil {
		fromSpec(m, c.Spec)
	}
	return m
}

func fromSpec(m *api.Container, s *specs.Spec) {
	// The CRI's own annotations override those in the runtime's spec.
	for k, v := range s.Annotations {
		if _, ok := m.Annotations[k]; !ok {
			m.Annotations[k] = v
		}
	}
	m.Mounts, m.Hooks = api.FromOCIMounts(s.Mounts), api.FromOCIHooks(s.Hooks)
	if s.Process != nil {
		fromProcess(m, s.Process)
	}
	if s.Linux != nil {
		fromLinux(m.Linux, s.Linux)
	}
}

func fromProcess(m *api.Container, p *specs.Process) {
	m.Args, m.Env = slices.Clone(p.Args), slices.Clone(p.Env)
	m.User = &api.User{Uid: p.User.UID, Gid: p.User.GID, AdditionalGids: slices.Clone(p.User.AdditionalGids)}
	for _, l := range p.Rlimits {
		m.Rlimits = append(m.Rlimits, &api.POSIXRlimit{Type: l.Type, Hard: l.Hard, Soft: l.Soft})
	}
	m.Linux.OomScoreAdj = api.Int(p.OOMScoreAdj)
	m.Linux.IoPriority = api.FromOCILinuxIOPriority(p.IOPriority)
	if p.Scheduler != nil {
		m.Linux.Scheduler = api.FromOCILinuxScheduler(p.Scheduler)
	}
}

func fromLinux(m *api.LinuxContainer, l *specs.Linux) {
	m.Namespaces = api.FromOCILinuxNamespaces(l.Namespaces)
	m.Devices = api.FromOCILinuxDevices(l.Devices)
	m.Resources = api.FromOCILinuxResources(l.Resources, nil)
	m.CgroupsPath = l.CgroupsPath
	m.Sysctl = maps.Clone(l.Sysctl)
	m.NetDevices = api.FromOCILinuxNetDevices(l.NetDevices)
	if l.Seccomp != nil {
		m.SeccompPolicy = api.FromOCILinuxSeccomp(l.Seccomp)
	}
	if r := l.IntelRdt; r != nil {
		m.Rdt = &api.LinuxRdt{
			ClosId: api.String(r.ClosID), Schemata: api.RepeatedString(r.Schemata), EnableMonitoring: api.Bool(r.EnableMonitoring),
		}
	}
}

func seccompProfile(c *runtimeapi.ContainerConfig) *api.SecurityProfile {
	p := c.GetLinux().GetSecurityContext().GetSeccomp()
	if p == nil {
		return nil
	}
	return &api.SecurityProfile{ProfileType: api.SecurityProfile_ProfileType(p.GetProfileType()), LocalhostRef: p.GetLocalhostRef()}
}

// copied never returns nil.
func copied(m map[string]string) map[string]string {
	c := make(map[string]string, len(m))
	maps.Copy(c, m)
	return c
}
