package probe

import (
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestKernelKind(t *testing.T) {
	driven := &Identity{Path: "/opt/bin/runtime"}
	for name, c := range map[string]struct {
		rt   *Runtime
		want KernelKind
	}{
		"no runtime":            {nil, nodeKernel},
		"unknown":               {&Runtime{Version: "0.3"}, nodeKernel},
		"runc":                  {&Runtime{Name: Runc}, nodeKernel},
		"runc by a shim":        {&Runtime{Name: Runc, Driven: driven}, nodeKernel},
		"Wasm modules":          {&Runtime{ShimAlone: true, Wasm: true}, nodeKernel},
		"gVisor":                {&Runtime{Name: Runsc}, gVisorKernel},
		"gVisor by runc's shim": {&Runtime{Name: Runsc, Driven: driven}, gVisorShimKernel},
		"gVisor's own shim":     {&Runtime{ShimAlone: true, ShimName: "io.containerd.runsc.v1"}, gVisorOwnShimKernel},
		"Kata's shim":           {&Runtime{ShimAlone: true, Path: "/opt/bin/containerd-shim-kata-v2"}, kataKernel},
		"another shim's name":   {&Runtime{ShimAlone: true, Path: "/opt/bin/containerd-shim-kata-v2", ShimName: "other"}, machineKernel},
		"krun":                  {&Runtime{Name: Crun, Path: "/opt/bin/krun"}, nodeKernel},
	} {
		test.Equal(t, name, c.rt.KernelKind(), c.want)
	}
}

// TestFactsOfKernels: these facts decide how a pod is stopped, measured and reached. containerd's
// shims have no call for a checkpoint of a whole pod.
func TestFactsOfKernels(t *testing.T) {
	for kind, want := range map[KernelKind]Kernel{
		nodeKernel: {HostProcesses: true},
		gVisorKernel: {
			NetworkInside: true, MemoryLimit: true, WholePods: true, RefusesSELinux: true, SeccompByAnnotation: true,
			LeastMemory: 24 << 20, TooLittleMemory: 20 << 20,
		},
		gVisorShimKernel: {
			Machine: true, RefusesSELinux: true, SeccompByAnnotation: true,
			LeastMemory: 24 << 20, TooLittleMemory: 20 << 20,
		},
		gVisorOwnShimKernel: {Machine: true},
		kataKernel:          {Machine: true},
		machineKernel:       {Machine: true},
		"another-kind":      {Machine: true},
	} {
		test.Equal(t, string(kind), kind.Facts(), want)
	}
}
