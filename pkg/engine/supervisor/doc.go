// Package supervisor is the program of cmd/berth-shim. By an OCI runtime, it starts the containers
// of all pods that share a supervisor key. It keeps their stdio, writes their CRI logs and reports
// their exits. The daemon calls it over ttrpc, but the containers do not need the daemon.
//
// It serves containerd.task.v3.Task and berth.supervisor.v1.Supervisor (proto/). Create and Start
// journal a task in <dir>/tasks/<id>/ before they return, so that a successor in the same directory
// takes over the tasks of a dead supervisor. The successor watches processes by pidfds, even if
// they are not its children, and opens the output FIFOs again. An exit is on disk before it is
// reported.
//
// Create does not call the runtime. Start is one `<runtime> run --detach` (or restore) with the
// FIFOs as the runtime's own stdio, which the container inherits. The container's ends of its
// output FIFOs are open for reading too. Without a supervisor, SIGPIPE therefore does not kill a
// container that writes: it blocks once the FIFO is full.
//
// No thread waits for a process: one goroutine reads the epoll set of all pidfds (package
// processes).
package supervisor
