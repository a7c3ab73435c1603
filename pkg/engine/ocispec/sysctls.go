package ocispec

import (
	"fmt"
	"maps"
	"math"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/sysctl"
)

const (
	sysctlUnprivilegedPort = "net.ipv4.ip_unprivileged_port_start"
	sysctlPingGroups       = "net.ipv4.ping_group_range"
)

// Sysctls returns what to write inside a pod's namespaces: what the pod asks
// for, with names as sent, and the node's defaults for pods with a network of
// their own. A pod that asks for sysctls of the node was refused before.
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

// pingGroups are all groups of the pod, as far as the kernel takes them: no
// group that is not mapped, and none beyond 31 bits on the host.
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
