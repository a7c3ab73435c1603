package ocispec

import (
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/pkg/probe"
)

// MountsToMap are the mounts of s whose ids the runtime would fail to map,
// although it can map those of others: they have to be mounted for it. crun
// takes the mapping from the process that it has made, and if that joined a PID
// namespace from one with the same number that has none (seen with 1.8.1).
// Mappings other than the container's own it makes by itself.
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
