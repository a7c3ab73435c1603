package ocispec

import (
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/probe"
)

func TestMountsToMap(t *testing.T) {
	ids := []specs.LinuxIDMapping{{HostID: 1 << 16, Size: 1 << 16}}
	others := []specs.LinuxIDMapping{{HostID: 1 << 17, Size: 1 << 16}}
	mapped := func(uids, gids []specs.LinuxIDMapping, options ...string) specs.Mount {
		return specs.Mount{Destination: "/v", UIDMappings: uids, GIDMappings: gids, Options: options}
	}
	crun := &probe.Runtime{Name: probe.Crun, Version: "1.8.1"}
	joined := specs.LinuxNamespace{Type: specs.PIDNamespace, Path: "/proc/7/ns/pid"}
	for name, tc := range map[string]struct {
		rt    *probe.Runtime
		pid   specs.LinuxNamespace
		mount specs.Mount
		want  []int
	}{
		"crun, joined":                    {crun, joined, mapped(ids, ids), []int{1}},
		"crun, joined, host to container": {crun, joined, mapped(ids, ids, "rbind", "rslave"), []int{1}},
		"crun, own PID namespace":         {crun, specs.LinuxNamespace{Type: specs.PIDNamespace}, mapped(ids, ids), nil},
		"crun, no PID namespace":          {crun, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/n"}, mapped(ids, ids), nil},
		"crun, no mapping":                {crun, joined, mapped(nil, nil), nil},
		"crun, another mapping":           {crun, joined, mapped(others, others), nil},
		"crun, another group mapping":     {crun, joined, mapped(ids, others), nil},
		"runc":                            {&probe.Runtime{Name: "runc"}, joined, mapped(ids, ids), nil},
		"unknown runtime":                 {nil, joined, mapped(ids, ids), nil},
		"runc, joined, bidirectional":     {&probe.Runtime{Name: "runc"}, joined, mapped(ids, ids, "rshared"), nil},
		"crun, unmapped, bidirectional":   {crun, joined, mapped(nil, nil, "rshared"), nil},
	} {
		s := &specs.Spec{
			Mounts: []specs.Mount{{Destination: "/proc", Type: "proc"}, tc.mount},
			Linux:  &specs.Linux{UIDMappings: ids, GIDMappings: ids, Namespaces: []specs.LinuxNamespace{tc.pid}},
		}
		test.EqualLists(t, name, test.Value(MountsToMap(s, tc.rt))(t), tc.want)
		tc.mount.Options = append(tc.mount.Options, "rshared")
		s.Mounts[1] = tc.mount
		if _, err := MountsToMap(s, tc.rt); (len(tc.want) > 0) != errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s, bidirectional: %v", name, err)
		}
	}
}
