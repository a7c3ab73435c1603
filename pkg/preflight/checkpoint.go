package preflight

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
		return lacks("its containers run on a separate kernel, which CRIU does not support")
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
