package rules

import (
	"strings"

	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Shims that are not for an OCI runtime, by what they say that they are called, and
// by the beginning of their files' names if they say nothing.
const (
	kataID, kataFile = "io.containerd.kata", "containerd-shim-kata"
	// gVisor's.
	runscID, runscFile = "io.containerd.runsc", "containerd-shim-runsc"
)

// krunName is how crun is called to run containers in a virtual machine.
const krunName = "krun"

func (f Facts) known() (kind, capability.Source) {
	rt := f.Handler.Runtime
	if rt == nil {
		return unknownKind, ""
	}
	switch rt.Name {
	case probe.Runsc:
		return gVisor, capability.Declared
	case probe.Crun:
		switch {
		case f.Krun:
			return krun, capability.Declared
		case f.runs() == krunName:
			return krun, capability.Probed
		}
		return sharing, capability.Declared
	case probe.Runc, probe.Youki:
		return sharing, capability.Declared
	}
	switch {
	case rt.Wasm && rt.WasmDeclared:
		return wasm, capability.Declared
	case rt.Wasm:
		return wasm, capability.Probed
	case strings.HasPrefix(rt.ShimName, kataID):
		return kata, capability.Declared
	case strings.HasPrefix(rt.ShimName, runscID):
		return gVisor, capability.Declared
	case rt.ShimName != "" || !rt.OwnKernel:
	case strings.HasPrefix(f.Handler.Binary, kataFile):
		return kata, capability.Probed
	case strings.HasPrefix(f.Handler.Binary, runscFile):
		return gVisor, capability.Probed
	}
	return unknownKind, ""
}

func (k kind) isolation() capability.Isolation {
	switch k {
	case sharing, wasm:
		return capability.SharedKernel
	case gVisor:
		return capability.UserSpaceKernel
	case kata, krun:
		return capability.VM
	case unknownKind:
	}
	return ""
}
