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
		"not asked":         {nil, nodeKernel},
		"unknown":           {&Runtime{Version: "0.3"}, nodeKernel},
		"runc":              {&Runtime{Name: Runc}, nodeKernel},
		"runc by a shim":    {&Runtime{Name: Runc, Driven: driven}, nodeKernel},
		"modules":           {&Runtime{ShimAlone: true, Wasm: true}, nodeKernel},
		"gVisor":            {&Runtime{Name: Runsc}, gVisorKernel},
		"gVisor by runc's":  {&Runtime{Name: Runsc, Driven: driven}, gVisorShimKernel},
		"gVisor's own shim": {&Runtime{ShimAlone: true, ShimName: "io.containerd.runsc.v1"}, machineKernel},
		"a shim of its own": {&Runtime{ShimAlone: true}, machineKernel},
	} {
		test.Equal(t, name, c.rt.KernelKind(), c.want)
	}
}

// containerd's shims pass on only the options of CRIU, whatever runtime they drive.
func TestShimsCheckpointNoPodAsAWhole(t *testing.T) {
	rt := &Runtime{Name: Runsc, Driven: &Identity{Path: "/opt/bin/runsc"}}
	if rt.Kernel().WholePods {
		t.Error("a shim is asked for a pod as a whole")
	}
}
