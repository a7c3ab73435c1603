// Package shims has shims that stand in for those that cannot run where tests do.
// Each is a program of its own, built by the tests, and behaves in named points as
// the shim that it is named after.
package shims

// KataState is where the imitation of Kata's shim writes down what pods it has.
const KataState = "/run/berth-test-kata"

// Kata says how the imitation of Kata's shim behaves where that can be chosen. It is
// a JSON file, which the handler's runtime_config_path names.
type Kata struct {
	// Runtime is the path of runc, which runs what Kata runs in its machine.
	Runtime string
	// Memory is what the machine holds, in MiB.
	Memory int
	// HoldCreate is a file: the Create of a pod, whose machine runs, does not answer
	// as long as it is there.
	HoldCreate string `json:",omitempty"`
	// HoldDelete is a file: the delete action does not go on as long as it is there.
	HoldDelete string `json:",omitempty"`
	// DropKill is a file: as long as it is there Kill answers, and kills nothing.
	DropKill string `json:",omitempty"`
	// FailKill is a file: as long as it is there Kill answers an error, as when nobody
	// in the machine answers any more.
	FailKill string `json:",omitempty"`
	// AbstractSocket has the shim listen where there is no file, as shims did that
	// were built on containerd before 1.4.
	AbstractSocket bool `json:",omitempty"`
	// AnswersElsewhere has the start action name an address where nobody listens.
	AnswersElsewhere bool `json:",omitempty"`
	// PublishBinary has the shim publish events by the program that it is given.
	PublishBinary bool `json:",omitempty"`
	// ForgetsNothing has the shim keep containers that were deleted in what it writes
	// down: its delete action then takes them to be there, and leaves the machine.
	ForgetsNothing bool `json:",omitempty"`
	// Network gives the machine a network of its own, with the addresses of the pod.
	// Nothing of the pod listens in the network namespace that the shim was given then.
	Network bool `json:",omitempty"`
	// FirstProgram is a static busybox, which sleeps in place of the first container's
	// program, as the pause of the guest's image does where the guest pulls images.
	FirstProgram string `json:",omitempty"`
}

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
