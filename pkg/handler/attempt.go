package handler

import "errors"

// Attempt is a pod's attempt to run on one of its handler's binaries.
type Attempt struct {
	// Definition is that of the pod, also if the pod was not created.
	Definition *Definition
	// SHA256 is that of the handler's binary, in hex; empty if unknown.
	SHA256 string
	// Pod is the pod's UID, which all its sandboxes share; without a UID, the sandbox's ID.
	Pod string
}

// runtimeFault is an error that is attributed to a handler's runtime or shim.
type runtimeFault struct{ error }

// Unwrap keeps the class.
func (f runtimeFault) Unwrap() error { return f.error }

// AttributeToRuntime attributes a failure to create or start a sandbox or container to the pod's
// runtime or shim. nil stays nil.
func AttributeToRuntime(err error) error {
	if err == nil {
		return nil
	}
	return runtimeFault{err}
}

// podFault is an error that is attributed to the pod.
type podFault struct{ error }

// Unwrap keeps the class.
func (f podFault) Unwrap() error { return f.error }

// AttributeToPod attributes an error to the pod's own image or limits, such as a program that is
// missing in the image. nil stays nil.
func AttributeToPod(err error) error {
	if err == nil {
		return nil
	}
	return podFault{err}
}

// IsPodFault reports whether err is attributed to the pod.
func IsPodFault(err error) bool {
	_, is := errors.AsType[podFault](err)
	return is
}

// IsRuntimeFault reports whether err is attributed to the runtime.
func IsRuntimeFault(err error) bool {
	_, is := errors.AsType[runtimeFault](err)
	return is
}
