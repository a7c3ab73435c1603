package preflight

import (
	"fmt"

	"github.com/berth-cri/berth/pkg/probe"
)

// GVisorMemory is a limit in which the releases of gVisor that were tried start a pod with a
// container that does nothing (docs/runtimes.md); in tooLittleMemory none does.
const GVisorMemory, tooLittleMemory = 24 << 20, 20 << 20

// Memory returns what a limit for the whole pod keeps the handler from, or nil. The runtime
// would be killed somewhere on the way. A limit of 0 is none.
func Memory(limit uint64, h Handler) *Refusal {
	if limit == 0 || limit > tooLittleMemory || h.Runtime == nil || h.Runtime.Name != probe.Runsc {
		return nil
	}
	return &Refusal{
		Feature: fmt.Sprintf("a memory limit of %.4gMi for the whole pod", float64(limit)/(1<<20)),
		Why:     fmt.Sprintf("%s itself needs %dMi to start one, and more for what it runs", h.runtime(), GVisorMemory>>20),
		Instead: "raise the memory limits of the containers, or overhead.podFixed.memory of the RuntimeClass",
	}
}
