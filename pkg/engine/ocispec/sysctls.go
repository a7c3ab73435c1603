package ocispec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	sysctlUnprivilegedPort = "net.ipv4.ip_unprivileged_port_start"
	sysctlPingGroups       = "net.ipv4.ping_group_range"
)

// Sysctls returns what to write inside a pod's namespaces: what the pod asks
// for, with names as sent, and the node's defaults for pods with a network of
// their own. A sysctl that belongs to no namespace of the pod is refused,
// because it would change the node.
func Sysctls(cfg *runtimeapi.PodSandboxConfig, n Node) (map[string]string, error) {
	opts := namespaceOptions(cfg)
	ownNetwork := opts.GetNetwork() != runtimeapi.NamespaceMode_NODE
	ownIPC := opts.GetIpc() != runtimeapi.NamespaceMode_NODE
	out := make(map[string]string)
	asked := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(cfg.GetLinux().GetSysctls())) {
		parts := sysctlParts(name)
		ns := sysctlNamespace(parts)
		switch {
		case ns == "":
			return nil, invalid("sysctl %q belongs to no namespace of a pod; set it on the node", name)
		case ns == "ipc" && !ownIPC, ns != "ipc" && !ownNetwork:
			return nil, invalid("sysctl %q would change the node, as the pod shares the node's %s namespace", name, ns)
		}
		asked[strings.Join(parts, ".")] = true
		out[name] = cfg.GetLinux().GetSysctls()[name]
	}
	if ownNetwork && n.UnprivilegedPorts && !asked[sysctlUnprivilegedPort] {
		out[sysctlUnprivilegedPort] = "0"
	}
	if ownNetwork && n.UnprivilegedICMP && !asked[sysctlPingGroups] {
		if groups := pingGroups(cfg); groups != "" {
			out[sysctlPingGroups] = groups
		}
	}
	return out, nil
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

// sysctlParts splits a name as sysctl(8) does: whichever of dot and slash comes
// first separates, and the other one stands for the first within a part.
func sysctlParts(name string) []string {
	i := strings.IndexAny(name, "./")
	if i >= 0 && name[i] == '/' {
		return strings.Split(name, "/")
	}
	parts := strings.Split(name, ".")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(p, "/", ".")
	}
	return parts
}

// sysctlNamespace says which namespace a sysctl belongs to, "" if to none or
// if the parts are no path below /proc/sys.
func sysctlNamespace(parts []string) string {
	if len(parts) < 2 || slices.ContainsFunc(parts, func(p string) bool { return p == "" || p == "." || p == ".." }) {
		return ""
	}
	top, leaf := parts[0], parts[1]
	switch {
	case top == "net":
		return "network"
	case top == "fs" && leaf == "mqueue",
		top == "kernel" && (leaf == "sem" || strings.HasPrefix(leaf, "shm") || strings.HasPrefix(leaf, "msg")):
		return "ipc"
	case top == "kernel" && (leaf == "hostname" || leaf == "domainname"):
		return "uts"
	}
	return ""
}
