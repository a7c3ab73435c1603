package ocispec

import (
	"cmp"
	"fmt"
	"maps"
	"math"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/sysctl"
)

// containerNamespaces follows the CRI's NamespaceMode for each kind: POD joins the sandbox's
// namespace, CONTAINER creates a new one, NODE uses the host's (not listed), TARGET joins that of
// another container. Only the pid mode may be CONTAINER or TARGET. The other modes are those of the
// sandbox, which already has its namespaces; the CRI repeats these modes.
func containerNamespaces(c Container, n Node) ([]specs.LinuxNamespace, error) {
	sc := c.Config.GetLinux().GetSecurityContext()
	sb := c.Sandbox
	pod := namespaceOptions(sb.Config)
	opts := cmp.Or(sc.GetNamespaceOptions(), podOptions(pod))
	out := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	for _, k := range []struct {
		kind    specs.LinuxNamespaceType
		mode    runtimeapi.NamespaceMode
		mounted string
		proc    string
	}{
		{specs.NetworkNamespace, pod.GetNetwork(), sb.NetNS, "net"},
		{specs.UTSNamespace, pod.GetNetwork(), sb.UTSNS, "uts"},
		{specs.IPCNamespace, pod.GetIpc(), sb.IPCNS, "ipc"},
	} {
		ns, err := podNamespace(sb, k.kind, k.mode, k.mounted, k.proc)
		if err != nil {
			return nil, err
		}
		if k.kind == specs.IPCNamespace && c.OwnIPC && len(ns) > 0 {
			ns[0].Path = ""
		}
		out = append(out, ns...)
	}
	pid, err := pidNamespace(opts, pod, sb, c.TargetPID)
	if err != nil {
		return nil, err
	}
	out = append(out, pid...)
	// A private cgroup namespace hides the node's hierarchy. On v1 it would break programs that
	// read /proc/self/cgroup. Privileged containers get none, because they manage cgroups.
	if n.CgroupUnified && !sc.GetPrivileged() {
		out = append(out, specs.LinuxNamespace{Type: specs.CgroupNamespace})
	}
	return out, nil
}

func namespaceOptions(cfg *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	return cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// podOptions returns the options of containers that set none. A pod has no target to join.
func podOptions(pod *runtimeapi.NamespaceOption) *runtimeapi.NamespaceOption {
	if pod.GetPid() != runtimeapi.NamespaceMode_TARGET {
		return pod
	}
	own := proto.CloneOf(pod)
	own.Pid = runtimeapi.NamespaceMode_CONTAINER
	return own
}

func podNamespace(sb Sandbox, kind specs.LinuxNamespaceType, mode runtimeapi.NamespaceMode, mounted, proc string) ([]specs.LinuxNamespace, error) {
	if mode == runtimeapi.NamespaceMode_NODE {
		return nil, nil
	}
	if mounted == "" && sb.PID > 0 {
		mounted = procNS(sb.PID, proc)
	}
	if mounted == "" {
		// Without a path, the container would be in the host's namespace.
		return nil, unmet("sandbox %s has no %s namespace to join; remove the pod sandbox", sb.ID, kind)
	}
	return []specs.LinuxNamespace{{Type: kind, Path: mounted}}, nil
}

func pidNamespace(opts, pod *runtimeapi.NamespaceOption, sb Sandbox, targetPID int) ([]specs.LinuxNamespace, error) {
	podIsHost := pod.GetPid() == runtimeapi.NamespaceMode_NODE
	switch opts.GetPid() {
	case runtimeapi.NamespaceMode_NODE:
		if !podIsHost {
			return nil, invalid("namespace_options: the container requests the host's PID namespace, but its pod sandbox does not")
		}
		return nil, nil
	case runtimeapi.NamespaceMode_POD:
		if podIsHost {
			return nil, nil
		}
		if sb.PID <= 0 {
			return nil, unmet("the container requests the pod's PID namespace, but sandbox %s was created without one (pid mode %s); set pid mode POD in the pod sandbox", sb.ID, pod.GetPid())
		}
		return []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: procNS(sb.PID, "pid")}}, nil
	case runtimeapi.NamespaceMode_TARGET:
		if targetPID <= 0 {
			return nil, unmet("container %q, whose PID namespace is requested, is not running", opts.GetTargetId())
		}
		return []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: procNS(targetPID, "pid")}}, nil
	}
	return []specs.LinuxNamespace{{Type: specs.PIDNamespace}}, nil
}

// sandboxNamespaces returns the namespaces of the sandbox's own process: the mounted ones, or new
// ones that containers join through the process.
func sandboxNamespaces(sb Sandbox) ([]specs.LinuxNamespace, error) {
	opts := namespaceOptions(sb.Config)
	hostNetwork := opts.GetNetwork() == runtimeapi.NamespaceMode_NODE
	if !hostNetwork && sb.NetNS == "" {
		return nil, unmet("sandbox %s has no network namespace; run the pod sandbox again", sb.ID)
	}
	out := []specs.LinuxNamespace{{Type: specs.MountNamespace}}
	if !hostNetwork {
		out = append(out,
			specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: sb.NetNS},
			specs.LinuxNamespace{Type: specs.UTSNamespace, Path: sb.UTSNS})
	}
	if opts.GetIpc() != runtimeapi.NamespaceMode_NODE {
		out = append(out, specs.LinuxNamespace{Type: specs.IPCNamespace, Path: sb.IPCNS})
	}
	if opts.GetPid() != runtimeapi.NamespaceMode_NODE {
		out = append(out, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}
	return out, nil
}

const (
	sysctlUnprivilegedPort = "net.ipv4.ip_unprivileged_port_start"
	sysctlPingGroups       = "net.ipv4.ping_group_range"
)

// Sysctls returns the sysctls to write in a pod's namespaces: the pod's own, with names as sent,
// and the node's defaults for pods with their own network. Sysctls of the whole node were refused
// before.
func Sysctls(cfg *runtimeapi.PodSandboxConfig, n Node) map[string]string {
	out := map[string]string{}
	maps.Copy(out, cfg.GetLinux().GetSysctls())
	asked := make(map[string]bool)
	for name := range out {
		asked[sysctl.Key(name)] = true
	}
	if namespaceOptions(cfg).GetNetwork() == runtimeapi.NamespaceMode_NODE {
		return out
	}
	if n.UnprivilegedPorts && !asked[sysctl.Key(sysctlUnprivilegedPort)] {
		out[sysctlUnprivilegedPort] = "0"
	}
	if n.UnprivilegedICMP && !asked[sysctl.Key(sysctlPingGroups)] {
		if groups := pingGroups(cfg); groups != "" {
			out[sysctlPingGroups] = groups
		}
	}
	return out
}

// pingGroups returns the range of all groups of the pod that the kernel accepts, or "". The kernel
// accepts only mapped groups with at most 31 bits on the host.
func pingGroups(cfg *runtimeapi.PodSandboxConfig) string {
	last := uint32(math.MaxInt32)
	if _, gids := UserMappings(cfg); len(gids) == 1 {
		if gids[0].HostID > math.MaxInt32 {
			return ""
		}
		last = min(gids[0].Size-1, math.MaxInt32-gids[0].HostID)
	}
	return fmt.Sprintf("0 %d", last)
}
