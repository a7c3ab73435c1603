package ocispec

import (
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/internal/test"
)

func TestFitRefusesActionsThatTheRuntimeLacks(t *testing.T) {
	for name, c := range map[string]specs.LinuxSeccomp{
		"default action": {DefaultAction: "SCMP_ACT_NEW"},
		"a rule's":       {DefaultAction: specs.ActAllow, Syscalls: []specs.LinuxSyscall{{Names: []string{"mount"}, Action: "SCMP_ACT_NEW"}}},
	} {
		err := Fit(&specs.Spec{Linux: &specs.Linux{Seccomp: &c}}, runc(t))
		test.Is(t, err, errdefs.IsFailedPrecondition, "%s", name)
		test.Says(t, err, "seccomp action SCMP_ACT_NEW: not supported by the runtime")
	}
}

func TestFitNode(t *testing.T) {
	wild := func() *specs.Spec {
		return &specs.Spec{
			Process: &specs.Process{OOMScoreAdj: new(-900)},
			Linux: &specs.Linux{Resources: &specs.LinuxResources{
				Memory:         &specs.LinuxMemory{Limit: new(int64(5)), Swap: new(int64(5))},
				HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1}},
			}},
		}
	}
	s := wild()
	test.Must(t, FitNode(s, modernNode()))
	if r := s.Linux.Resources; deref(r.Memory.Swap) != 5 || len(r.HugepageLimits) != 1 {
		t.Errorf("FitNode removed something for a node with all controllers: %+v", r)
	}

	s, n := wild(), bareNode()
	n.MinOOMScoreAdj = 0
	test.Must(t, FitNode(s, n))
	if r := s.Linux.Resources; deref(s.Process.OOMScoreAdj) != 0 || r.Memory.Swap != nil || r.HugepageLimits != nil || deref(r.Memory.Limit) != 5 {
		t.Errorf("got %+v, oom_score_adj %d", r, *s.Process.OOMScoreAdj)
	}

	s = wild()
	s.Linux.Resources.HugepageLimits, s.Linux.Resources.Unified = nil, map[string]string{"memory.high": "1"}
	test.Is(t, FitNode(s, n), errdefs.IsFailedPrecondition, "cgroup v2 values on v1")
	for _, s := range []*specs.Spec{{}, {Linux: &specs.Linux{}}} {
		test.Checkf(t, FitNode(s, n), "a spec without resources")
	}
}
