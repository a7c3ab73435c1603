package handler

// Owned is a sandbox that a backend has, as the router needs to know it to
// send later calls about it, or about its containers, to that backend.
type Owned struct {
	// Sandbox is the sandbox's full id.
	Sandbox string
	// Handler is the name of the Definition that the sandbox was created with,
	// never empty. It need not be in the current table.
	Handler string
	// Containers are the full ids of the sandbox's containers, in any state.
	Containers []string
}
