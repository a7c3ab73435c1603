package shims

// Wasm says how the imitation of runwasi's shims behaves where that can be chosen. It is
// a JSON file, which the handler's runtime_config_path names.
type Wasm struct {
	// Runtime is the path of runc, which makes the containers. What runs in those of
	// modules is the shim itself.
	Runtime string
	// PublishBinary has the shim publish events by the program that it is given.
	PublishBinary bool `json:",omitempty"`
}

// PrecompiledLabel is on the layer of a module that the imitation has compiled, with the
// digest of the result; and on the image, with "true". runwasi's begin alike.
const PrecompiledLabel = "runwasi.io/precompiled/wazero/1"
