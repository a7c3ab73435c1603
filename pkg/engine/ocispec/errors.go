package ocispec

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// invalid returns the error of a request that is wrong on every node.
func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// unmet returns the error of a request that this node or this runtime cannot fulfil.
func unmet(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrFailedPrecondition)...)
}
