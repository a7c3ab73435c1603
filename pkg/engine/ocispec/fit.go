package ocispec

import (
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/pkg/probe"
)

// Fit adapts s to the runtime: ociVersion, and optional fields. It drops fields that only tune
// scheduling if the runtime is too old for them. If the runtime does not support a field that
// decides what a workload sees, reaches or may do, Fit fails, because the runtime would ignore that
// field.
//
// Build calls it. Call it again after any later change of the spec.
func Fit(s *specs.Spec, rt *probe.Runtime) error {
	s.Version = rt.OCIVersion()
	if s.Process != nil {
		dropTuning(s.Process, rt)
	}
	for _, m := range s.Mounts {
		if err := fitMount(m, rt); err != nil {
			return err
		}
	}
	if s.Linux == nil {
		return nil
	}
	if s.Annotations[annotationGVisorSeccomp] != "" {
		if err := fitGVisorSeccomp(s.Linux.Seccomp, rt); err != nil {
			return err
		}
	}
	return fitLinux(s.Linux, rt)
}

func dropTuning(p *specs.Process, rt *probe.Runtime) {
	if !rt.KnowsOCI("1.1.0") {
		p.Scheduler = nil
		p.IOPriority = nil
	}
	if !rt.KnowsOCI("1.2.0") {
		p.ExecCPUAffinity = nil
	}
}

func fitMount(m specs.Mount, rt *probe.Runtime) error {
	mapped := len(m.UIDMappings) > 0 || len(m.GIDMappings) > 0 || slices.Contains(m.Options, "idmap") || slices.Contains(m.Options, "ridmap")
	if mapped && !rt.SupportsIDMap() {
		return unmet("mount %s: the runtime does not report support for mapping IDs of mounts", m.Destination)
	}
	for _, o := range m.Options {
		if (o == "rro" || strings.HasPrefix(o, "rno")) && !rt.SupportsMountOption(o) {
			return unmet("mount %s: the runtime does not report support for the recursive mount option %s", m.Destination, o)
		}
	}
	return nil
}

func fitLinux(l *specs.Linux, rt *probe.Runtime) error {
	if len(l.NetDevices) > 0 && !rt.SupportsNetDevices() {
		return unmet("linux.netDevices: the runtime does not report support for network devices")
	}
	if l.MemoryPolicy != nil && !rt.KnowsOCI("1.3.0") {
		return unmet("linux.memoryPolicy needs a runtime with OCI 1.3, but this one has %s", rt.OCIVersion())
	}
	for _, ns := range l.Namespaces {
		if ns.Type == specs.UserNamespace && !rt.SupportsUserNamespaces() {
			return unmet("the runtime does not report support for user namespaces")
		}
		if ns.Type == specs.TimeNamespace && !rt.SupportsNamespace(specs.TimeNamespace) {
			return unmet("the runtime does not report support for time namespaces")
		}
	}
	if c := l.Seccomp; c != nil {
		return fitSeccomp(c, rt)
	}
	return nil
}

// gVisorActions are the seccomp actions of a runsc that does not report its own.
var gVisorActions = []specs.LinuxSeccompAction{specs.ActAllow, specs.ActErrno, specs.ActKill, specs.ActTrap, specs.ActTrace}

// fitGVisorSeccomp refuses filters with which runsc would not start a container.
func fitGVisorSeccomp(c *specs.LinuxSeccomp, rt *probe.Runtime) error {
	if c == nil || rt.Features != nil {
		return nil
	}
	for _, sc := range append([]specs.LinuxSyscall{{Action: c.DefaultAction}}, c.Syscalls...) {
		if !slices.Contains(gVisorActions, sc.Action) {
			return unmet("seccomp action %s: not supported by gVisor; supported: %v", sc.Action, gVisorActions)
		}
	}
	return nil
}

// fitSeccomp refuses filters that the runtime's libseccomp does not support.
func fitSeccomp(c *specs.LinuxSeccomp, rt *probe.Runtime) error {
	if rt == nil || rt.Features == nil || rt.Features.Linux == nil || rt.Features.Linux.Seccomp == nil {
		return nil
	}
	f := rt.Features.Linux.Seccomp
	for _, flag := range c.Flags {
		if f.SupportedFlags != nil && !slices.Contains(f.SupportedFlags, string(flag)) {
			return unmet("seccomp flag %s: not supported by the runtime on this node", flag)
		}
	}
	if f.Actions == nil {
		return nil
	}
	for _, sc := range append([]specs.LinuxSyscall{{Action: c.DefaultAction}}, c.Syscalls...) {
		if !slices.Contains(f.Actions, string(sc.Action)) {
			return unmet("seccomp action %s: not supported by the runtime", sc.Action)
		}
	}
	return nil
}

// FitNode fits s to this node after a plugin has changed it, as Build does: it raises oom_score_adj
// to the lowest value that berth may set, and removes limits of missing cgroup controllers.
func FitNode(s *specs.Spec, n Node) error {
	if p := s.Process; p != nil && p.OOMScoreAdj != nil {
		p.OOMScoreAdj = clampOOMScoreAdj(int64(*p.OOMScoreAdj), n)
	}
	if s.Linux == nil || s.Linux.Resources == nil {
		return nil
	}
	r := s.Linux.Resources
	if r.Memory != nil && !n.SwapController {
		r.Memory.Swap = nil
	}
	if len(r.Unified) > 0 && !n.CgroupUnified {
		return unmet("resources.unified is for cgroup v2, but this node has v1")
	}
	if !n.HugetlbController {
		r.HugepageLimits = nil
	}
	return nil
}
