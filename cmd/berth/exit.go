package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	exitFailure = 1
	// exitConfig means that the configuration, or the command line, is wrong.
	exitConfig = 2
	// exitDegraded means that what was asked for was done, and that something is
	// not as it should be.
	exitDegraded = 3
)

// codedError is an error that ends the process with a code of its own. One without an error
// in it prints nothing: the command has printed why.
type codedError struct {
	code int
	error
}

func (e *codedError) Unwrap() error { return e.error }

func misused(c *cobra.Command, err error) error {
	return &codedError{exitConfig, fmt.Errorf("%w; see \"%s --help\"", err, c.CommandPath())}
}
