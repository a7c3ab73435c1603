// Package supervisor is what cmd/berth-shim runs: it starts the containers of
// one handler generation by an OCI runtime, keeps their stdio, writes their CRI
// logs and reports their exits, over ttrpc and without the daemon.
//
// It serves containerd.task.v3.Task and berth.supervisor.v1.Supervisor (proto/).
// A task is journaled in <dir>/tasks/<id>/ before it is answered for, so that a
// successor that is started on the same directory takes over what a dead
// supervisor held: a process is watched by pidfd, which works for everybody and
// not for the parent alone; output goes through FIFOs, which can be opened
// again; an exit is on disk before it is announced.
//
// Create only journals. Start is one `<runtime> run --detach` with the FIFOs as
// the runtime's own stdio, which it hands on to the container: no byte of output
// passes through two processes. The container's ends are open for reading and
// writing, so that a reader that dies blocks the container for a while instead
// of killing it by SIGPIPE.
//
// No thread waits for a process: all pidfds are in one epoll set, which one goroutine reads
// (package processes).
package supervisor
