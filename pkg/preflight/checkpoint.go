package preflight

import "github.com/berth-cri/berth/pkg/probe"

// Checkpoints returns what keeps the handler's containers from being
// checkpointed, or nil. Most runtimes do not say that they cannot, and what comes
// of one that was built without CRIU is a container that stands still: so the
// runtime has to say that it can.
func Checkpoints(h Handler) *Refusal {
	lacks := func(why string) *Refusal {
		return &Refusal{Feature: "a checkpoint", Why: why, Instead: "let the application save its own state"}
	}
	switch {
	case h.Runtime == nil:
		return nil
	case h.ownKernel():
		refusal := lacks("its containers run on a separate kernel, which CRIU does not support")
		if PodCheckpoints(h) == nil {
			refusal.Instead = "checkpoint the pod as a whole (CheckpointPod)"
		}
		return refusal
	case !h.Runtime.MakesCheckpoints():
		return lacks(h.runtime() + " does not report support for CRIU")
	}
	if h.Checkpoints == nil {
		return nil
	}
	if err := h.Checkpoints(); err != nil {
		return lacks(err.Error())
	}
	return nil
}

// PodCheckpoints returns what keeps the handler's pods from being checkpointed as a whole, and
// restored, or nil: runtimes other than gVisor's write containers one by one.
func PodCheckpoints(h Handler) *Refusal {
	if h.Runtime == nil || h.Runtime.Name == probe.Runsc && h.ownKernel() {
		return nil
	}
	return &Refusal{
		Feature: "a checkpoint of a whole pod", Why: h.runtime() + " does not write pods as a whole",
		Instead: "checkpoint its containers one by one (CheckpointContainer) where the handler can",
	}
}
