package validate

import (
	"math"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandboxNamespaces checks the modes of a sandbox. It treats the PID mode TARGET, which is meant
// for containers, as CONTAINER, as other CRI daemons do.
func sandboxNamespaces(field string, o *runtimeapi.NamespaceOption) error {
	return first(
		sharedNamespaces(field, o),
		userns(field+".userns_options", o.GetUsernsOptions()),
		usernsBesideHost(field, o),
	)
}

// usernsBesideHost refuses modes that the kernel does not support: the proc and mqueue file systems
// can only be mounted by the owner of the PID and IPC namespaces.
func usernsBesideHost(field string, o *runtimeapi.NamespaceOption) error {
	if len(o.GetUsernsOptions().GetUids()) == 0 {
		return nil
	}
	notNode := func(field string, mode runtimeapi.NamespaceMode) error {
		return invalidIf(mode == runtimeapi.NamespaceMode_NODE, field,
			"NODE is not possible beside a user namespace of the pod's own; use another mode, or set userns_options to NODE")
	}
	return first(notNode(field+".pid", o.GetPid()), notNode(field+".ipc", o.GetIpc()))
}

// containerNamespaces checks the modes of a container in a sandbox with the options s.
func containerNamespaces(field string, o, s *runtimeapi.NamespaceOption) error {
	return first(
		sharedNamespaces(field, o),
		target(field, o),
		userns(field+".userns_options", o.GetUsernsOptions()),
		sameUserns(field+".userns_options", o.GetUsernsOptions(), s.GetUsernsOptions()),
	)
}

// sharedNamespaces checks the modes themselves. Only the PID namespace can belong to one container:
// the network and IPC namespaces belong to the sandbox.
func sharedNamespaces(field string, o *runtimeapi.NamespaceOption) error {
	return first(
		known(field+".network", o.GetNetwork(), runtimeapi.NamespaceMode_name),
		known(field+".pid", o.GetPid(), runtimeapi.NamespaceMode_name),
		known(field+".ipc", o.GetIpc(), runtimeapi.NamespaceMode_name),
		podOrNode(field+".network", o.GetNetwork()),
		podOrNode(field+".ipc", o.GetIpc()),
	)
}

func podOrNode(field string, mode runtimeapi.NamespaceMode) error {
	return invalidIf(mode != runtimeapi.NamespaceMode_POD && mode != runtimeapi.NamespaceMode_NODE, field,
		"%s is not possible for this namespace; use POD or NODE", mode)
}

// target checks target_id if the mode uses it.
func target(field string, o *runtimeapi.NamespaceOption) error {
	if o.GetPid() != runtimeapi.NamespaceMode_TARGET {
		return nil
	}
	return checkID(field+".target_id", o.GetTargetId())
}

// userns checks the user namespace of a pod. Old clients omit the options to request NODE.
func userns(field string, u *runtimeapi.UserNamespace) error {
	if u == nil {
		return nil
	}
	switch u.GetMode() {
	case runtimeapi.NamespaceMode_NODE:
		return invalidIf(len(u.GetUids())+len(u.GetGids()) > 0, field, "mode NODE has mappings; remove them, or use POD")
	case runtimeapi.NamespaceMode_POD:
		return first(podMapping(field+".uids", u.GetUids()), podMapping(field+".gids", u.GetGids()))
	default:
		return invalid(field+".mode", "%s is not possible for a user namespace; use POD or NODE", u.GetMode())
	}
}

// podMapping checks the single mapping of a pod's user namespace.
func podMapping(field string, mappings []*runtimeapi.IDMapping) error {
	if len(mappings) != 1 {
		return invalid(field, "has %d mappings; give exactly one", len(mappings))
	}
	if c := mappings[0].GetContainerId(); c != 0 {
		return invalid(field+"[0].container_id", "is %d, which leaves root of the container without an id; use 0", c)
	}
	return mapping(field+"[0]", mappings[0])
}

// mapping checks one range of ids, which must end before (uid_t)-1.
func mapping(field string, m *runtimeapi.IDMapping) error {
	const last = uint64(math.MaxUint32)
	end := uint64(max(m.GetHostId(), m.GetContainerId())) + uint64(m.GetLength())
	return first(
		invalidIf(m.GetLength() == 0, field+".length", "is 0; give the number of ids to map"),
		invalidIf(end > last, field, "ends beyond the last id, %d; use a smaller length", last-1),
	)
}

// sameUserns checks that a container is in the user namespace of its sandbox: it shares the
// sandbox's network, and files made for the sandbox's root.
func sameUserns(field string, c, s *runtimeapi.UserNamespace) error {
	same := sameMappings(c.GetUids(), s.GetUids()) && sameMappings(c.GetGids(), s.GetGids())
	return invalidIf(!same, field, "differ from those of the sandbox; send the same options for all containers of a pod")
}

func sameMappings(a, b []*runtimeapi.IDMapping) bool {
	return slices.EqualFunc(a, b, func(a, b *runtimeapi.IDMapping) bool {
		return a.GetHostId() == b.GetHostId() && a.GetContainerId() == b.GetContainerId() && a.GetLength() == b.GetLength()
	})
}
