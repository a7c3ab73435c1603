package pod

// OwnShim reports whether a foreign shim runs s alone. Such a shim exits after its last task is
// deleted. Supervisors run all other sandboxes.
func (s *Sandbox) OwnShim() bool { return s.Spec().Definition.OwnShim() }

// MountsRootfs reports whether the mounts of a root filesystem are passed with the task, so that a
// virtual machine may use them directly.
func (s *Sandbox) MountsRootfs() bool { return s.OwnShim() }

// CreatesEarly reports whether Create of the Task API calls the runtime. A supervisor does so at
// Start.
func (s *Sandbox) CreatesEarly() bool { return s.OwnShim() }

// JournalsStarts reports whether each start is recorded before it begins, and continues without its
// caller.
func (s *Sandbox) JournalsStarts() bool { return !s.OwnShim() }

// ClosesStdin reports whether the stdin of a container with stdin_once is closed when its first
// client disconnects, without a CloseIO.
func (s *Sandbox) ClosesStdin() bool { return !s.OwnShim() }

// KillsTree reports whether a kill of "all" of an exec kills the command and its descendants. The
// Task API does not define that; Kata kills the whole container.
func (s *Sandbox) KillsTree() bool { return !s.OwnShim() }
