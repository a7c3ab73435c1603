package supervisor_test

import (
	"encoding/json"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/internal/test"
)

func anyJSON(t testing.TB, v any) *anypb.Any {
	t.Helper()
	b := test.Value(json.Marshal(v))(t)
	return &anypb.Any{TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: b}
}

func memoryLimited(limit int64, script string) containerConfig {
	c := shell(script)
	c.spec = func(s *specs.Spec) {
		s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}}
	}
	return c
}

func inHostPIDs(script string) containerConfig {
	c := shell(script)
	c.spec = func(s *specs.Spec) {
		var kept []specs.LinuxNamespace
		for _, n := range s.Linux.Namespaces {
			if n.Type != specs.PIDNamespace {
				kept = append(kept, n)
			}
		}
		s.Linux.Namespaces = kept
	}
	return c
}
