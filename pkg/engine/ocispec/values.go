package ocispec

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// invalid says that the request is wrong on every node.
func invalid(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
}

// unmet says that this node, or this runtime, lacks what the request needs.
func unmet(format string, args ...any) error {
	return fmt.Errorf(format+": %w", append(args, errdefs.ErrFailedPrecondition)...)
}

func ptr[T any](v T) *T { return &v }

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}
