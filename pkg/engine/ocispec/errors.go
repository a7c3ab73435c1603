package ocispec

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// invalid is the error of a request that is wrong on every node.
func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// unmet is the error of a request that needs what this node, or this runtime, lacks.
func unmet(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrFailedPrecondition)...)
}
