// Package supervisor is what cmd/berth-shim runs: it starts the containers of all pods with one
// supervisor key by an OCI runtime, keeps their stdio, writes their CRI logs and reports their
// exits, over ttrpc and without the daemon.
//
// It serves containerd.task.v3.Task and berth.supervisor.v1.Supervisor (proto/).
// A task is journaled in <dir>/tasks/<id>/ before the call is answered, so that a successor on the
// same directory takes over the tasks of a dead supervisor: processes are watched by pidfd, which
// works for processes that are not children; output goes through FIFOs, which can be opened again;
// an exit is on disk before it is announced.
//
// Create only journals. Start is one `<runtime> run --detach` with the FIFOs as the runtime's own
// stdio, which the container inherits: no other process copies the output. The container's ends are
// open for reading and writing, so that a dead reader blocks the container for a while instead of
// killing it by SIGPIPE.
//
// No thread waits for a process: one goroutine reads the epoll set of all pidfds (package
// processes).
package supervisor
