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
		if h.wholePods() {
			refusal.Instead = "checkpoint the pod as a whole (CheckpointPod)"
		}
		return refusal
	case !h.Runtime.MakesCheckpoints():
		return lacks(h.runtime() + " does not report support for CRIU")
	}
	if why := h.Runtime.LacksRestore(); why != "" {
		return lacks(why)
	}
	if h.Checkpoints == nil {
		return nil
	}
	if err := h.Checkpoints(); err != nil {
		return lacks(err.Error())
	}
	return nil
}

// PodCheckpoints returns what keeps the handler's pods from being checkpointed, and restored,
// or nil: gVisor writes a pod as a whole, others have CRIU write each of its containers.
func PodCheckpoints(h Handler) *Refusal {
	if h.Runtime == nil || h.wholePods() {
		return nil
	}
	refusal := Checkpoints(h)
	if refusal != nil {
		refusal.Feature = "a checkpoint of a pod"
	}
	return refusal
}

func (h Handler) wholePods() bool { return h.Runtime.Name == probe.Runsc && h.ownKernel() }
