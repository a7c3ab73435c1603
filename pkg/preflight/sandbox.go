package preflight

import (
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/printable"
)

// Sandbox returns the refusal of a pod's first request that the handler does not support, or nil.
func Sandbox(c *runtimeapi.PodSandboxConfig, h Handler) *Refusal {
	if h.Runtime == nil {
		return nil
	}
	sc := c.GetLinux().GetSecurityContext()
	o := sc.GetNamespaceOptions()
	if l := hostNamespaces(o, h); l != nil {
		return l
	}
	if u := o.GetUsernsOptions(); u != nil && u.GetMode() == runtimeapi.NamespaceMode_POD {
		if l := UserNamespaces(h); l != nil {
			return l
		}
	}
	return selinux(sc.GetSelinuxOptions(), h)
}

// hostNamespaces refuses host namespaces for pods on a separate kernel. Without this check the pod
// would start without a network, or would not see the host's processes, and no error would be
// reported.
func hostNamespaces(o *runtimeapi.NamespaceOption, h Handler) *Refusal {
	if h.hostProcesses() {
		return nil
	}
	for _, ns := range []struct {
		field  string
		wanted bool
	}{
		{"hostNetwork", o.GetNetwork() == runtimeapi.NamespaceMode_NODE && !h.HostNetwork},
		{"hostPID", o.GetPid() == runtimeapi.NamespaceMode_NODE},
		{"hostIPC", o.GetIpc() == runtimeapi.NamespaceMode_NODE},
	} {
		if ns.wanted {
			return &Refusal{
				Feature: ns.field, Why: "its containers run on a kernel that " + h.runtime() + " provides",
				Instead: "drop " + ns.field,
			}
		}
	}
	return nil
}

// UserNamespaces returns why the handler's pods cannot have user namespaces, or nil. An unknown
// runtime does not support them.
func UserNamespaces(h Handler) *Refusal {
	lacks := func(format string, args ...any) *Refusal {
		return &Refusal{
			Feature: "a user namespace (hostUsers: false)", Why: fmt.Sprintf(format, args...),
			Instead: "set hostUsers: true, or remove it",
		}
	}
	switch {
	case h.Runtime == nil:
		return lacks("its runtime does not respond")
	case !h.hostProcesses():
		return lacks("its containers run on a separate kernel with users of its own")
	case !h.Runtime.SupportsUserNamespaces():
		return lacks("%s does not report support for user namespaces", h.runtime())
	case !h.Runtime.SupportsIDMap():
		return lacks("%s does not report support for mapping IDs of mounts, so volumes would have the wrong owner", h.runtime())
	}
	if h.UserNamespaces == nil {
		return nil
	}
	if err := h.UserNamespaces(); err != nil {
		return lacks("%s", printable.Error(err))
	}
	return nil
}

func selinux(o *runtimeapi.SELinuxOption, h Handler) *Refusal {
	asked := o.GetUser() != "" || o.GetRole() != "" || o.GetType() != "" || o.GetLevel() != ""
	return enforced(h, asked && h.Node.SELinux, "SELinux", h.Runtime.SELinux(), "SELinux labels (seLinuxOptions)", "remove seLinuxOptions")
}
