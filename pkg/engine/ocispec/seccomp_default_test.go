package ocispec

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/probe"
)

// If a node has its own default profile, that profile replaces the built-in default profile. It
// replaces no other profile.
func TestRuntimeDefaultIsTheNodesProfile(t *testing.T) {
	n := Node{Seccomp: true, DefaultSeccomp: func() (*SeccompProfile, error) {
		return ParseSeccomp("/etc/seccomp.json", `{"defaultAction":"SCMP_ACT_LOG"}`)
	}}
	def := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	got, err := seccompOf(def, "", false, nil, nil, n, &probe.Runtime{})
	if err != nil || got == nil || got.DefaultAction != specs.ActLog {
		t.Errorf("RuntimeDefault: %+v, %v", got, err)
	}
	n.DefaultSeccomp = nil
	if got, err := seccompOf(def, "", false, nil, nil, n, &probe.Runtime{}); err != nil || got == nil || got.DefaultAction == specs.ActLog {
		t.Errorf("without a profile of the node: %+v, %v", got, err)
	}
	if got, err := seccompOf(nil, "", false, nil, nil, n, &probe.Runtime{}); err != nil || got != nil {
		t.Errorf("no profile requested: %+v, %v", got, err)
	}
}
