package ocispec

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/internal/test"
)

// docker is a profile with every key that the profiles of Docker, Podman and CRI-O have.
const docker = `{
	"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 38, "defaultErrno": "ENOSYS",
	"archMap": [
		{"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": ["SCMP_ARCH_ARM"]},
		{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86", "SCMP_ARCH_X32"]}
	],
	"syscalls": [
		{"names": ["read", "write"], "action": "SCMP_ACT_ALLOW", "args": [], "comment": "all", "includes": {}, "excludes": {}},
		{"name": "old", "action": "SCMP_ACT_ALLOW", "args": null},
		{"names": ["personality"], "action": "SCMP_ACT_ALLOW", "args": [{"index": 0, "value": 8, "op": "SCMP_CMP_EQ"}]},
		{"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
		{"names": ["ptrace-of-old"], "action": "SCMP_ACT_ALLOW", "excludes": {"minKernel": "4.8"}},
		{"names": ["arm-only"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["arm64"]}},
		{"names": ["not-arm"], "action": "SCMP_ACT_ALLOW", "excludes": {"arches": ["arm64"]}},
		{"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
		{"names": ["both"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN", "CAP_BPF"]}},
		{"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1, "errno": "EPERM", "excludes": {"caps": ["CAP_SYS_ADMIN"]}}
	]
}`

func TestSeccompProfileIsForAContainer(t *testing.T) {
	p := test.Value(ParseSeccomp("/docker.json", docker))(t)
	for _, c := range []struct {
		facts seccompFacts
		archs []specs.Arch
		want  string
	}{
		{seccompFacts{arch: "amd64", kernel: "6.18.3-generic"}, []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
			"read,write old personality ptrace not-arm clone"},
		{seccompFacts{arch: "amd64", kernel: "4.8.0", caps: []string{"CAP_SYS_ADMIN"}}, []specs.Arch{specs.ArchX86_64, specs.ArchX86, specs.ArchX32},
			"read,write old personality ptrace not-arm mount"},
		{seccompFacts{arch: "arm64", kernel: "4.7", caps: []string{"CAP_SYS_ADMIN", "CAP_BPF"}}, []specs.Arch{specs.ArchAARCH64, specs.ArchARM},
			"read,write old personality ptrace-of-old arm-only mount both"},
		{seccompFacts{arch: "riscv64", kernel: "10.0"}, nil, "read,write old personality ptrace not-arm clone"},
	} {
		got := test.Value(p.filter(c.facts))(t)
		var names []string
		for _, s := range got.Syscalls {
			names = append(names, strings.Join(s.Names, ","))
			if s.Names[0] == "clone" && (s.ErrnoRet == nil || *s.ErrnoRet != 1) {
				t.Errorf("the errno of clone is %v", s.ErrnoRet)
			}
		}
		if strings.Join(names, " ") != c.want || !slices.Equal(got.Architectures, c.archs) {
			t.Errorf("%+v: %q of %v, want %q of %v", c.facts, names, got.Architectures, c.want, c.archs)
		}
		if got.DefaultAction != specs.ActErrno || *got.DefaultErrnoRet != 38 {
			t.Errorf("%+v: by default %s, %d", c.facts, got.DefaultAction, *got.DefaultErrnoRet)
		}
	}
	test.Is(t, test.Err(p.filter(seccompFacts{arch: "amd64", kernel: "unknown"})), errdefs.IsFailedPrecondition, "a kernel without a version number")
}

// A profile with a part that cannot be enforced is refused; no part is left out.
func TestSeccompProfileRefused(t *testing.T) {
	for what, c := range map[string]struct{ content, says string }{
		"unknown key":                           {`{"defaultAction": "SCMP_ACT_ALLOW", "denied": ["mount"]}`, `"denied"`},
		"unknown key of a rule":                 {`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["a"], "action": "SCMP_ACT_ERRNO", "includes": {"users": ["root"]}}]}`, `"users"`},
		"no action":                             {`{"syscalls": []}`, "defaultAction"},
		"both architectures":                    {`{"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86"], "archMap": [{"architecture": "SCMP_ARCH_X86"}]}`, "archMap"},
		"both names":                            {`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"name": "a", "names": ["b"], "action": "SCMP_ACT_ERRNO"}]}`, "names"},
		"no names":                              {`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"action": "SCMP_ACT_ERRNO"}]}`, "no names"},
		"a bad errno in a rule for other nodes": {`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["a"], "action": "SCMP_ACT_ERRNO", "errno": "EWHAT", "includes": {"arches": ["none"]}}]}`, "EWHAT"},
		"a bad kernel version in a rule for other nodes": {`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["a"], "action": "SCMP_ACT_ERRNO", "includes": {"arches": ["none"], "minKernel": "new"}}]}`,
			"minKernel"},
		"two documents": {`{"defaultAction": "SCMP_ACT_ALLOW"} {}`, "more than one"},
		"not JSON":      {`SCMP_ACT_ALLOW`, "neither"},
	} {
		_, err := ParseSeccomp("/p.json", c.content)
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
