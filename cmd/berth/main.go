// Command berth is the daemon and the operator's commands in one binary. It
// translates flags, signals and the environment into calls of packages, and
// does nothing else.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/printable"
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

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

// run runs a command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	stdout, stderr = output.NewTerminal(stdout), output.NewTerminal(stderr)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return report(root.ExecuteContext(ctx), stderr)
}

// report prints an error and returns the exit code that it asks for.
func report(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	var coded *codedError
	if !errors.As(err, &coded) {
		coded = &codedError{exitFailure, err}
	}
	if coded.error != nil {
		fmt.Fprintln(stderr, "berth:", printable.Error(err))
	}
	return coded.code
}

// codedError is an error that ends the process with a code of its own. Without an error
// in it all is said.
type codedError struct {
	code int
	error
}

func (e *codedError) Unwrap() error { return e.error }
