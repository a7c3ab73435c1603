package handler

// Owned is a sandbox that a backend has, as the router needs to know it to
// send later calls about it, or about its containers, to that backend.
type Owned struct {
	// Sandbox is the sandbox's full id.
	Sandbox string
	// Handler is the name of the Definition that the sandbox was created with,
	// never empty. It need not be in the current table.
	Handler string
	// Definition is what the sandbox was created with and keeps; nil if the
	// backend does not say.
	Definition *Definition
	// Version is what the runtime said of itself then, or empty.
	Version string
	// Containers are the full ids of the sandbox's containers, in any state.
	Containers []string
}
