package pod_test

import (
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestDialedInside(t *testing.T) {
	for name, c := range map[string]struct {
		plan pod.Plan
		want bool
	}{
		"gVisor":                     {pod.Plan{OwnKernel: true, Net: true}, true},
		"gVisor, the host's network": {pod.Plan{OwnKernel: true}, false},
		"runc":                       {pod.Plan{Net: true}, false},
	} {
		spec := pod.SandboxSpec{Definition: &handler.Definition{Type: handler.OCI}, Plan: c.plan}
		test.Equal(t, name, enginetest.Sandbox(t, t.TempDir(), spec, &enginetest.Runner{}).DialedInside(), c.want)
	}
}
