package runtimeclass

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Requirement is something that a pod asks of its handler.
type Requirement struct {
	Capability capability.Name `json:"capability"`
	// Field is the first one that asks for it.
	Field string `json:"field"`
	// Value is what the field says.
	Value string `json:"value"`
}

func (r Requirement) String() string { return fmt.Sprintf("%s: %s", r.Field, r.Value) }

// Requirements are what a pod asks of its handler, each once, in the order of the
// manifest. What every handler gives is not among them.
func Requirements(pod *corev1.Pod) []Requirement {
	r := &requirements{}
	spec := &pod.Spec
	r.flag(capability.HostNetwork, "spec.hostNetwork", spec.HostNetwork)
	r.flag(capability.HostPID, "spec.hostPID", spec.HostPID)
	r.flag(capability.HostIPC, "spec.hostIPC", spec.HostIPC)
	if spec.HostUsers != nil && !*spec.HostUsers {
		r.add(capability.UserNamespaces, "spec.hostUsers", "false")
		// Also of a pod without volumes: the kubelet mounts some into every pod.
		r.add(capability.IDMappedMounts, "spec.hostUsers", "false")
	}
	if len(spec.ResourceClaims) > 0 {
		r.add(capability.Devices, "spec.resourceClaims[0]", spec.ResourceClaims[0].Name)
	}
	for i, v := range spec.Volumes {
		if v.EmptyDir != nil && strings.HasPrefix(string(v.EmptyDir.Medium), string(corev1.StorageMediumHugePages)) {
			r.add(capability.HugePages, fmt.Sprintf("spec.volumes[%d].emptyDir.medium", i), string(v.EmptyDir.Medium))
		}
	}
	if spec.Resources != nil {
		r.resources("spec.resources", *spec.Resources)
	}
	if s := spec.SecurityContext; s != nil {
		if len(s.Sysctls) > 0 {
			r.add(capability.Sysctls, "spec.securityContext.sysctls[0]", s.Sysctls[0].Name)
		}
		r.selinux("spec.securityContext", s.SELinuxOptions)
	}
	for i := range spec.InitContainers {
		r.container(pod, fmt.Sprintf("spec.initContainers[%d]", i), &spec.InitContainers[i])
	}
	for i := range spec.Containers {
		r.container(pod, fmt.Sprintf("spec.containers[%d]", i), &spec.Containers[i])
	}
	return r.all
}

type requirements struct{ all []Requirement }

func (r *requirements) add(n capability.Name, field, value string) {
	if !slices.ContainsFunc(r.all, func(o Requirement) bool { return o.Capability == n }) {
		r.all = append(r.all, Requirement{n, field, value})
	}
}

func (r *requirements) flag(n capability.Name, field string, set bool) {
	if set {
		r.add(n, field, "true")
	}
}

func (r *requirements) container(pod *corev1.Pod, at string, c *corev1.Container) {
	s, of := c.SecurityContext, at+".securityContext"
	if s == nil {
		s = &corev1.SecurityContext{}
	}
	privileged := isTrue(s.Privileged)
	r.flag(capability.Privileged, of+".privileged", privileged)
	r.seccomp(pod, of, s, privileged)
	r.appArmor(pod, of, s, c.Name, privileged)
	r.selinux(of, s.SELinuxOptions)
	if s.ProcMount != nil && *s.ProcMount == corev1.UnmaskedProcMount {
		r.add(capability.UnmaskedProc, of+".procMount", string(*s.ProcMount))
	}
	r.resources(at+".resources", c.Resources)
	for i, m := range c.VolumeMounts {
		mount := fmt.Sprintf("%s.volumeMounts[%d]", at, i)
		if m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled {
			r.add(capability.RecursiveReadOnlyMounts, mount+".recursiveReadOnly", string(*m.RecursiveReadOnly))
		}
		if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
			r.add(capability.MountPropagation, mount+".mountPropagation", string(*m.MountPropagation))
		}
	}
	if len(c.VolumeDevices) > 0 {
		r.add(capability.BlockVolumes, at+".volumeDevices[0]", c.VolumeDevices[0].DevicePath)
	}
	r.commands(at, c)
}

// seccomp: a privileged container has no profile, whatever is written.
func (r *requirements) seccomp(pod *corev1.Pod, at string, s *corev1.SecurityContext, privileged bool) {
	profile, field := s.SeccompProfile, at+".seccompProfile.type"
	if profile == nil && pod.Spec.SecurityContext != nil {
		profile, field = pod.Spec.SecurityContext.SeccompProfile, "spec.securityContext.seccompProfile.type"
	}
	if profile != nil && profile.Type != corev1.SeccompProfileTypeUnconfined && !privileged {
		r.add(capability.Seccomp, field, string(profile.Type))
	}
}

// appArmor: a profile of the host holds for a privileged container too.
func (r *requirements) appArmor(pod *corev1.Pod, at string, s *corev1.SecurityContext, container string, privileged bool) {
	profile, field := s.AppArmorProfile, at+".appArmorProfile.type"
	if profile == nil && pod.Spec.SecurityContext != nil {
		profile, field = pod.Spec.SecurityContext.AppArmorProfile, "spec.securityContext.appArmorProfile.type"
	}
	if profile != nil {
		if profile.Type == corev1.AppArmorProfileTypeLocalhost || profile.Type == corev1.AppArmorProfileTypeRuntimeDefault && !privileged {
			r.add(capability.AppArmor, field, string(profile.Type))
		}
		return
	}
	// How it was written before the field.
	key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + container
	if old := pod.Annotations[key]; old != "" && old != corev1.DeprecatedAppArmorBetaProfileNameUnconfined {
		if local := strings.HasPrefix(old, corev1.DeprecatedAppArmorBetaProfileNamePrefix); local || !privileged {
			r.add(capability.AppArmor, fmt.Sprintf("metadata.annotations[%q]", key), old)
		}
	}
}

func (r *requirements) selinux(at string, o *corev1.SELinuxOptions) {
	if o != nil && *o != (corev1.SELinuxOptions{}) {
		r.add(capability.SELinux, at+".seLinuxOptions", strings.Join([]string{o.User, o.Role, o.Type, o.Level}, ":"))
	}
}

func (r *requirements) resources(at string, all corev1.ResourceRequirements) {
	for of, l := range map[string]corev1.ResourceList{"limits": all.Limits, "requests": all.Requests} {
		// What is no ordinary resource has to be in the limits.
		if of == "requests" && len(all.Limits) > 0 {
			continue
		}
		for _, name := range sorted(l) {
			q := l[name]
			field := fmt.Sprintf("%s.%s[%q]", at, of, name)
			switch {
			case isHuge(name):
				r.add(capability.HugePages, field, q.String())
			case extended(name):
				r.add(capability.Devices, field, q.String())
			}
		}
	}
	if len(all.Claims) > 0 {
		r.add(capability.Devices, at+".claims[0]", all.Claims[0].Name)
	}
}

// commands: probes and hooks that run something in the container.
func (r *requirements) commands(at string, c *corev1.Container) {
	for _, p := range []struct {
		field string
		probe *corev1.Probe
	}{{"startupProbe", c.StartupProbe}, {"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}} {
		if p.probe != nil {
			r.command(at+"."+p.field, p.probe.Exec)
		}
	}
	if c.Lifecycle == nil {
		return
	}
	if h := c.Lifecycle.PostStart; h != nil {
		r.command(at+".lifecycle.postStart", h.Exec)
	}
	if h := c.Lifecycle.PreStop; h != nil {
		r.command(at+".lifecycle.preStop", h.Exec)
	}
}

func (r *requirements) command(at string, e *corev1.ExecAction) {
	if e != nil {
		r.add(capability.Exec, at+".exec", strings.Join(e.Command, " "))
	}
}

func isTrue(b *bool) bool { return b != nil && *b }
