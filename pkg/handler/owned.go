package handler

// OwnedBinary is a program that a sandbox keeps.
type OwnedBinary struct {
	// Path is where it was installed, Runs what is run: a copy, or Path.
	Path, Runs string
	// SHA256 is that of its content then, in hex.
	SHA256 string
	// Version is what it said of itself, or empty.
	Version string
}

// Owned is a sandbox that a backend has, as the router needs to know it to
// send later calls about it, or about its containers, to that backend.
type Owned struct {
	// Sandbox is the sandbox's full id.
	Sandbox string
	// Handler is the name of the Definition that the sandbox was created with,
	// never empty. It need not be in the current table.
	Handler string
	// UID is the pod's, or empty.
	UID string
	// Definition is what the sandbox was created with and keeps; nil if the
	// backend does not say.
	Definition *Definition
	// Generation is that of the table by which the sandbox was routed, counted from
	// the start of the daemon that did; 0 if the backend does not say.
	Generation uint64
	// Binaries are the programs that it was created with and keeps: the
	// handler's, then the one that a shim drives. None if the backend does not say.
	Binaries []OwnedBinary
	// Containers are the full ids of the sandbox's containers, in any state.
	Containers []string
}
