package ocispec

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/probe"
)

// UserMappings returns the ids of a pod's own user namespace, or none if the pod uses the host's.
// Old clients request the host's by sending no options.
func UserMappings(cfg *runtimeapi.PodSandboxConfig) (uids, gids []specs.LinuxIDMapping) {
	u := namespaceOptions(cfg).GetUsernsOptions()
	if u.GetMode() != runtimeapi.NamespaceMode_POD {
		return nil, nil
	}
	return idMappings(u.GetUids()), idMappings(u.GetGids())
}

func idMappings(in []*runtimeapi.IDMapping) []specs.LinuxIDMapping {
	var out []specs.LinuxIDMapping
	for _, m := range in {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()})
	}
	return out
}

// setUserNS adds the pod's user namespace to s, which must already have its process.
func setUserNS(s *specs.Spec, sb Sandbox) error {
	uids, gids := UserMappings(sb.Config)
	if len(uids)+len(gids) == 0 {
		return nil
	}
	if sb.UserNS == "" {
		// Without the namespace, root of the pod would be root of the host.
		return unmet("sandbox %s has no user namespace to join; remove the pod sandbox", sb.ID)
	}
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: sb.UserNS})
	s.Linux.UIDMappings, s.Linux.GIDMappings = uids, gids
	return checkMapped(s.Process.User, uids, gids)
}

// checkMapped refuses ids that do not exist in the pod, because the runtime would only report an
// invalid argument.
func checkMapped(u specs.User, uids, gids []specs.LinuxIDMapping) error {
	if !inside(u.UID, uids) {
		return invalid("user %d is beyond the %d IDs of the pod's user namespace", u.UID, uids[0].Size)
	}
	for _, g := range append([]uint32{u.GID}, u.AdditionalGids...) {
		if !inside(g, gids) {
			return invalid("group %d is beyond the %d IDs of the pod's user namespace", g, gids[0].Size)
		}
	}
	return nil
}

func inside(id uint32, mappings []specs.LinuxIDMapping) bool {
	return slices.ContainsFunc(mappings, func(m specs.LinuxIDMapping) bool {
		return id >= m.ContainerID && id-m.ContainerID < m.Size
	})
}

// hostSysfs shows the host's /sys to a pod with a user namespace and the host's network: a sysfs
// can only be mounted by the owner of its network namespace.
func hostSysfs(mounts []specs.Mount, cfg *runtimeapi.PodSandboxConfig, rt *probe.Runtime, n Node) {
	uids, gids := UserMappings(cfg)
	if len(uids)+len(gids) == 0 || namespaceOptions(cfg).GetNetwork() != runtimeapi.NamespaceMode_NODE {
		return
	}
	access := "ro"
	if n.KernelRRO && rt.SupportsRecursiveReadOnly() {
		access = "rro"
	}
	for i := range mounts {
		if mounts[i].Type == "sysfs" {
			mounts[i] = bind("/sys", mounts[i].Destination, "rprivate", "nosuid", "noexec", "nodev", access)
		}
	}
}

// MountsToMap returns the indexes of mounts in s that the caller must map to the container's ids,
// because crun would fail. crun reads the mapping from the process that it created, by its PID. If
// that process joined a PID namespace, crun finds another process with the same PID and no mapping
// (seen with 1.8.1). crun itself applies mappings other than the container's.
func MountsToMap(s *specs.Spec, rt *probe.Runtime) ([]int, error) {
	if rt == nil || rt.Name != probe.Crun || s.Linux == nil || !joinsProcesses(s.Linux) {
		return nil, nil
	}
	var out []int
	for i, m := range s.Mounts {
		if len(m.UIDMappings) == 0 || !slices.Equal(m.UIDMappings, s.Linux.UIDMappings) || !slices.Equal(m.GIDMappings, s.Linux.GIDMappings) {
			continue
		}
		if slices.Contains(m.Options, "rshared") || slices.Contains(m.Options, "shared") {
			return nil, unmet("mount %s: crun cannot map its IDs in a pod with a shared PID namespace, nor can berth with propagation Bidirectional; "+
				"use propagation HostToContainer or None, or a handler of runc", m.Destination)
		}
		out = append(out, i)
	}
	return out, nil
}

func joinsProcesses(l *specs.Linux) bool {
	return slices.ContainsFunc(l.Namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.PIDNamespace && ns.Path != ""
	})
}
