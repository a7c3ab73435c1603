package pod

import (
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

func TestKernelOf(t *testing.T) {
	for name, c := range map[string]struct {
		kind handler.Type
		plan Plan
		want Kernel
	}{
		"runc":             {handler.OCI, Plan{Runtime: probe.Runc}, Kernel{HostProcesses: true}},
		"runc by a shim":   {handler.Shim, Plan{}, Kernel{HostProcesses: true}},
		"gVisor":           {handler.OCI, Plan{OwnKernel: true, Runtime: probe.Runsc}, Kernel{NetworkInside: true, MemoryLimit: true}},
		"gVisor by a shim": {handler.Shim, Plan{OwnKernel: true, Runtime: probe.Runsc}, Kernel{Machine: true}},
		"a machine":        {handler.Shim, Plan{OwnKernel: true}, Kernel{Machine: true}},
	} {
		test.Equal(t, name, kernelOf(&handler.Definition{Type: c.kind}, c.plan), c.want)
	}
}
