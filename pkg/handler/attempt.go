package handler

import "errors"

// Attempt is a pod's try to run on one of its handler's binaries.
type Attempt struct {
	// Definition is the one that the pod has, or was to have.
	Definition *Definition
	// SHA256 is that of the handler's binary, in hex; empty if nobody knows.
	SHA256 string
	// Pod is the same for all sandboxes of a pod: its uid, else the sandbox's id.
	Pod string
}

// fault is an error that a handler's runtime, or its shim, is to blame for.
type fault struct{ error }

// Unwrap keeps the class.
func (f fault) Unwrap() error { return f.error }

// Blame marks an error as the doing of the pod's runtime or shim: it was asked to
// make or start something that it should be able to, and did not. nil stays nil.
func Blame(err error) error {
	if err == nil {
		return nil
	}
	return fault{err}
}

// ofPod is an error that the pod's own image or limits are the reason of.
type ofPod struct{ error }

// Unwrap keeps the class.
func (f ofPod) Unwrap() error { return f.error }

// OfPod marks an error that the pod's own image or limits are the reason of, such as a
// program that its image does not have. nil stays nil.
func OfPod(err error) error {
	if err == nil {
		return nil
	}
	return ofPod{err}
}

// IsOfPod reports whether err is so marked.
func IsOfPod(err error) bool {
	_, is := errors.AsType[ofPod](err)
	return is
}

// Blamed says whether err is so marked.
func Blamed(err error) bool {
	_, is := errors.AsType[fault](err)
	return is
}
