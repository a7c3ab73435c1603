// Package shims has the settings of shims that imitate others, which cannot run on test machines.
// Each imitation is a program that the tests build. It behaves like the real shim in certain
// points.
package shims

// KataState is the directory in which the imitation of Kata's shim records its pods.
const KataState = "/run/berth-test-kata"

// Kata has the settings of the imitation of Kata's shim. They are in a JSON file, which the
// handler's runtime_config_path names.
type Kata struct {
	// Runtime is the path of runc, which runs the containers that Kata would run in its machine.
	Runtime string
	// Memory is the machine's memory in MiB.
	Memory int
	// HoldCreate is a file. While it exists, the Create of a pod does not return, though its
	// machine runs.
	HoldCreate string `json:",omitempty"`
	// HoldDelete is a file. While it exists, the delete action waits.
	HoldDelete string `json:",omitempty"`
	// DropKill is a file. While it exists, Kill succeeds but kills nothing.
	DropKill string `json:",omitempty"`
	// FailKill is a file. While it exists, Kill returns an error, as if the agent in the machine no
	// longer answered.
	FailKill string `json:",omitempty"`
	// AbstractSocket has the shim listen on an abstract socket, as shims do that were built on
	// containerd before 1.4.
	AbstractSocket bool `json:",omitempty"`
	// AnswersElsewhere has the start action return an address without a listener.
	AnswersElsewhere bool `json:",omitempty"`
	// PublishBinary has the shim publish events by the program of -publish-binary.
	PublishBinary bool `json:",omitempty"`
	// ForgetsNothing has the shim keep deleted containers in its records. Its delete action then
	// does not stop the machine.
	ForgetsNothing bool `json:",omitempty"`
	// Network gives the machine its own network namespace, with the addresses of the pod. Then the
	// pod does not listen in the network namespace that the shim was given.
	Network bool `json:",omitempty"`
	// FirstProgram is a static busybox, which sleeps in place of the first container's program, as
	// the pause of the guest's image does if the guest pulls images.
	FirstProgram string `json:",omitempty"`
}

// Wasm has the settings of the imitation of runwasi's shims. They are in a JSON file, which the
// handler's runtime_config_path names.
type Wasm struct {
	// Runtime is the path of runc, which runs the containers. In a container with a module, runc
	// runs the shim itself.
	Runtime string
	// PublishBinary has the shim publish events by the program of -publish-binary.
	PublishBinary bool `json:",omitempty"`
}

// PrecompiledLabel is the label of a module's layer that the imitation has compiled, with the
// digest of the result, and of its image, with "true". The labels of runwasi have the same prefix.
const PrecompiledLabel = "runwasi.io/precompiled/wazero/1"
