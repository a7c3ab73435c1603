package pod_test

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// A restarted daemon reads a pod's kernel from the record, without the runtime.
func TestKernelIsRecorded(t *testing.T) {
	d := &handler.Definition{Type: handler.OCI}
	for _, rt := range []*probe.Runtime{{Name: probe.Runc}, {Name: probe.Runsc}, {Name: probe.Runsc, Driven: &probe.Identity{}}, {ShimAlone: true}} {
		spec := pod.SandboxSpec{Definition: d, Plan: pod.NewPlan(&runtimeapi.PodSandboxConfig{}, d, rt)}
		s := enginetest.Sandbox(t, t.TempDir(), spec, &enginetest.Runner{})
		test.Equal(t, string(rt.KernelKind()), s.Kernel, rt.Kernel())
	}
}
