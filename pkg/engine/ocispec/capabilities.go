package ocispec

import (
	"cmp"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/probe"
)

// defaultCapabilities is the set of containerd and Docker for every container; images rely on it.
var defaultCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_MKNOD", "CAP_NET_RAW", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL", "CAP_AUDIT_WRITE",
}

// knownCapabilities are all capabilities of Linux, in the kernel's order.
var knownCapabilities = func() []string {
	var names []string
	for _, c := range capability.ListKnown() {
		names = append(names, "CAP_"+strings.ToUpper(c.String()))
	}
	return names
}()

// available returns the capabilities that a container can have on this node and runtime. A runtime
// with its own kernel gives capabilities of that kernel.
func available(n Node, rt *probe.Runtime) []string {
	all := knownCapabilities
	if n.Capabilities != nil && rt.Kernel().HostProcesses {
		all = n.Capabilities
	}
	if rt == nil || rt.Features == nil || rt.Features.Linux == nil || len(rt.Features.Linux.Capabilities) == 0 {
		return all
	}
	return intersect(all, rt.Features.Linux.Capabilities)
}

// capabilities returns the sets of a container. Names may have any case, with or without CAP_;
// "ALL" is applied before single names, drops after adds. Inheritable contains only the ambient
// capabilities, which the kernel drops if they are not inheritable, as in all runtimes since
// CVE-2022-24769.
func capabilities(base *specs.LinuxCapabilities, sc *runtimeapi.LinuxContainerSecurityContext, n Node, rt *probe.Runtime) (*specs.LinuxCapabilities, error) {
	all := available(n, rt)
	if sc.GetPrivileged() {
		return capabilitySets(all, nil), nil
	}
	add, addAll, addErr := capabilityNames(sc.GetCapabilities().GetAddCapabilities())
	drop, dropAll, dropErr := capabilityNames(sc.GetCapabilities().GetDropCapabilities())
	ambient, ambientAll, ambientErr := capabilityNames(sc.GetCapabilities().GetAddAmbientCapabilities())
	if err := cmp.Or(addErr, dropErr, ambientErr); err != nil {
		return nil, err
	}
	if missing := without(slices.Concat(add, ambient), all); len(missing) > 0 {
		return nil, unmet("capability %s: not available on this node or in its runtime; remove it from the container", strings.Join(missing, ", "))
	}

	set := defaultCapabilities
	if base != nil {
		set = base.Bounding
	}
	set = intersect(set, all)
	if addAll {
		set = slices.Clone(all)
	}
	if dropAll {
		set = nil
	}
	if ambientAll {
		ambient = slices.Clone(all)
	}
	set = without(union(union(set, add), ambient), drop)
	return capabilitySets(set, without(ambient, drop)), nil
}

func capabilitySets(set, ambient []string) *specs.LinuxCapabilities {
	return &specs.LinuxCapabilities{
		Bounding:    slices.Clone(set),
		Effective:   slices.Clone(set),
		Permitted:   slices.Clone(set),
		Inheritable: slices.Clone(ambient),
		Ambient:     slices.Clone(ambient),
	}
}

// capabilityNames normalizes names to CAP_NAME and separates "ALL".
func capabilityNames(in []string) (names []string, all bool, err error) {
	for _, c := range in {
		name := strings.ToUpper(c)
		if name == "ALL" {
			all = true
			continue
		}
		name = "CAP_" + strings.TrimPrefix(name, "CAP_")
		if !slices.Contains(knownCapabilities, name) {
			return nil, false, invalid("capability %q does not exist in Linux", c)
		}
		names = append(names, name)
	}
	return names, all, nil
}

func intersect(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(c string) bool { return !slices.Contains(b, c) })
}

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(c string) bool { return slices.Contains(b, c) })
}

func union(a, b []string) []string {
	out := slices.Clone(a)
	for _, c := range b {
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}
