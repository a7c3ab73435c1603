package preflight

import (
	"cmp"
	"fmt"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Container returns the refusal of a container's first request that its pod's handler does not
// support, or nil.
func Container(c *runtimeapi.ContainerConfig, h Handler) *Refusal {
	if h.Runtime == nil {
		return nil
	}
	sc := c.GetLinux().GetSecurityContext()
	return cmp.Or(
		targetPID(sc.GetNamespaceOptions(), h),
		mounts(c.GetMounts(), h),
		seccomp(sc, h),
		appArmor(sc, h),
		selinux(sc.GetSelinuxOptions(), h),
	)
}

func targetPID(o *runtimeapi.NamespaceOption, h Handler) *Refusal {
	if o.GetPid() != runtimeapi.NamespaceMode_TARGET || h.hostProcesses() {
		return nil
	}
	return &Refusal{
		Feature: "the PID namespace of another container (targetContainerName)",
		Why:     h.runtime() + " can only join the PID namespace of a whole pod",
		Instead: "remove the target, or set shareProcessNamespace for the pod",
	}
}

func mounts(all []*runtimeapi.Mount, h Handler) *Refusal {
	for _, m := range all {
		if l := mount(m, h); l != nil {
			return l
		}
	}
	return nil
}

func mount(m *runtimeapi.Mount, h Handler) *Refusal {
	isImage := m.GetImage().GetImage() != "" // berth mounts images itself
	switch {
	case m.GetRecursiveReadOnly():
		if l := RecursiveReadOnly(h); l != nil {
			l.Feature = fmt.Sprintf("recursive read-only mounts (%s)", printable.Clip(m.GetContainerPath(), 128))
			return l
		}
	case m.GetPropagation() == runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL && !h.hostProcesses():
		return &Refusal{
			Feature: fmt.Sprintf("mount propagation Bidirectional (%s)", printable.Clip(m.GetContainerPath(), 128)),
			Why:     "mounts on the kernel that " + h.runtime() + " provides are not visible on the host",
			Instead: "use HostToContainer or None",
		}
	}
	if mapped := len(m.GetUidMappings()) > 0 || len(m.GetGidMappings()) > 0; mapped && !isImage {
		return kindOfMount(h, h.Runtime.SupportsIDMap(), "mapping IDs of mounts", &Refusal{
			Feature: fmt.Sprintf("mounts with mapped IDs (%s)", printable.Clip(m.GetContainerPath(), 128)),
			Instead: "remove the mappings",
		})
	}
	return nil
}

// RecursiveReadOnly returns why the handler's containers cannot have recursive read-only mounts, or
// nil. An unknown runtime does not support them.
func RecursiveReadOnly(h Handler) *Refusal {
	return kindOfMount(h, h.Runtime.SupportsRecursiveReadOnly(), "them (mount option rro)", &Refusal{
		Feature: "recursive read-only mounts", Instead: "set recursiveReadOnly to IfPossible or Disabled",
		prefix: crierrors.ErrRROUnsupported,
	})
}

// kindOfMount returns l with the reason why the handler does not support such mounts, or nil.
func kindOfMount(h Handler, supported bool, what string, l *Refusal) *Refusal {
	switch {
	case !h.Node.MountSetattr:
		l.Why = "they need Linux 5.12"
	case h.Runtime == nil:
		l.Why = "its runtime does not respond"
	case !supported:
		l.Why = h.runtime() + " does not report support for " + what
	default:
		return nil
	}
	return l
}

// asks reports whether a profile is requested: by the structured field if it is set, else by the
// deprecated string.
func asks(p *runtimeapi.SecurityProfile, deprecated string) bool {
	if p != nil {
		return p.GetProfileType() != runtimeapi.SecurityProfile_Unconfined
	}
	return deprecated != "" && deprecated != "unconfined"
}

// enforced refuses a request that the node's kernel enforces, if the runtime was built without
// support for it. On a separate kernel the request has no effect.
func enforced(h Handler, asked bool, by string, can capability.Answer, feature, instead string) *Refusal {
	if !asked || !h.hostProcesses() || can != capability.No {
		return nil
	}
	return &Refusal{Feature: feature, Why: h.runtime() + " was built without " + by, Instead: instead}
}

func seccomp(sc *runtimeapi.LinuxContainerSecurityContext, h Handler) *Refusal {
	//nolint:staticcheck // The deprecated field is all that old clients send.
	asked := asks(sc.GetSeccomp(), sc.GetSeccompProfilePath()) && !sc.GetPrivileged()
	return enforced(h, asked, "seccomp", h.Runtime.Seccomp(), "a seccomp profile", "set seccompProfile to Unconfined")
}

func appArmor(sc *runtimeapi.LinuxContainerSecurityContext, h Handler) *Refusal {
	//nolint:staticcheck // The deprecated field is all that old clients send.
	asked := asks(sc.GetApparmor(), sc.GetApparmorProfile())
	byName := sc.GetApparmor().GetProfileType() == runtimeapi.SecurityProfile_Localhost // named profiles apply to privileged containers too
	asked = asked && (byName || !sc.GetPrivileged()) && h.Node.AppArmor
	return enforced(h, asked, "AppArmor", h.Runtime.AppArmor(), "an AppArmor profile", "set appArmorProfile to Unconfined")
}

// Memory refuses a memory limit of the whole pod that is too low to start the runtime, which the
// kernel would kill during the start. 0 means no limit.
func Memory(limit uint64, h Handler) *Refusal {
	kernel := h.Runtime.Kernel()
	if limit == 0 || limit > kernel.TooLittleMemory {
		return nil
	}
	return &Refusal{
		Feature: fmt.Sprintf("a memory limit of %.4gMi for the whole pod", float64(limit)/(1<<20)),
		Why:     fmt.Sprintf("%s itself needs %dMi to start a pod, and more for its containers", h.runtime(), kernel.LeastMemory>>20),
		Instead: "raise the memory limits of the containers, or overhead.podFixed.memory of the RuntimeClass",
	}
}

// Checkpoints returns why the handler's containers cannot be checkpointed, or nil. The runtime must
// report support: few report the lack of it, and a runtime that was built without CRIU would leave
// the container paused.
func Checkpoints(h Handler) *Refusal {
	lacks := func(why string) *Refusal {
		return &Refusal{Feature: "a checkpoint", Why: why, Instead: "let the application save its own state"}
	}
	switch {
	case h.Runtime == nil:
		return nil
	case !h.hostProcesses():
		refusal := lacks("its containers run on a separate kernel, which CRIU does not support")
		if h.Runtime.Kernel().WholePods {
			refusal.Instead = "checkpoint the pod as a whole (CheckpointPod)"
		}
		return refusal
	case !h.Runtime.MakesCheckpoints():
		return lacks(h.runtime() + " does not report support for CRIU")
	}
	if why := h.Runtime.LacksRestore(); why != "" {
		return lacks(why)
	}
	if h.Checkpoints == nil {
		return nil
	}
	if err := h.Checkpoints(); err != nil {
		return lacks(err.Error())
	}
	return nil
}

// PodCheckpoints returns why the handler's pods cannot be checkpointed and restored, or nil.
func PodCheckpoints(h Handler) *Refusal {
	if h.Runtime == nil || h.Runtime.Kernel().WholePods {
		return nil
	}
	instead := "checkpoint single containers (CheckpointContainer)"
	if refusal := Checkpoints(h); refusal != nil {
		instead = refusal.Instead
	}
	return &Refusal{Feature: "a checkpoint of a pod", Why: "only gVisor's runsc without a shim writes pods as a whole", Instead: instead}
}
