package probe

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// transient marks an error that says more about the moment than about the runtime.
type transient struct{ error }

// Unwrap keeps the class.
func (t transient) Unwrap() error { return t.error }

// Passing marks an error that Transient is to be said of.
func Passing(err error) error { return transient{err} }

// errnos are what the kernel says when it has too little at the moment, or when a
// program is still being written.
var errnos = []error{syscall.EAGAIN, syscall.ETXTBSY, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.EINTR}

// shortage is what programs write that end for want of the same.
var shortage = []string{"resource temporarily unavailable", "cannot allocate memory", "out of memory", "too many open files", "failed to create new os thread"}

// Transient says whether what kept a probe from its end may well be gone in a few
// seconds: a machine that is short of something, a program that is being written, a
// runtime that was too slow or that somebody else killed.
func Transient(err error) bool {
	var t transient
	if errors.As(err, &t) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	return slices.ContainsFunc(errnos, func(errno error) bool { return errors.Is(err, errno) })
}

// passing marks the error of a program that ran, by how it ended and what it wrote.
func passing(err error, stderr string) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if st, ok := exit.Sys().(syscall.WaitStatus); ok && st.Signaled() && st.Signal() == syscall.SIGKILL {
			return transient{err}
		}
	}
	said := strings.ToLower(stderr)
	for _, words := range shortage {
		if strings.Contains(said, words) {
			return transient{err}
		}
	}
	return err
}
