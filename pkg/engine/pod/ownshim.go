package pod

// OwnShim is whether a shim runs s and no other sandbox. It exits when it has
// forgotten its last task. All else is run by supervisors.
func (s *Sandbox) OwnShim() bool { return s.Spec().Definition.OwnShim() }

// MountsRootfs is whether the mounts of a root filesystem are handed over with the
// task, so that a virtual machine may take them as they are.
func (s *Sandbox) MountsRootfs() bool { return s.OwnShim() }

// CreatesEarly is whether Create of the Task API calls the runtime. A supervisor calls
// it at Start.
func (s *Sandbox) CreatesEarly() bool { return s.OwnShim() }

// JournalsStarts is whether each start is written down before it is made, and goes on
// when its caller is lost.
func (s *Sandbox) JournalsStarts() bool { return !s.OwnShim() }

// ClosesStdin is whether the stdin of a container ends by itself when the first client
// is gone that the container was to have (stdin_once).
func (s *Sandbox) ClosesStdin() bool { return !s.OwnShim() }

// KillsTree is whether to kill "all" of an exec is to kill the command and its
// descendants. The Task API does not define that; Kata kills the whole container.
func (s *Sandbox) KillsTree() bool { return !s.OwnShim() }
