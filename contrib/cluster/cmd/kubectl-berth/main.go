// Command kubectl-berth is "kubectl berth": what a cluster's nodes, RuntimeClasses and
// pods say of handlers. It asks the API server and nobody else. Kubernetes' client is
// linked here, and not into the daemon, which has no use for it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/printable"
)

// Exit codes, which are those of berth.
const (
	exitFailure = 1
	// exitWrong means that the command line, or a file, is wrong. Nothing was done.
	exitWrong = 2
	// exitFindings means that the work was done, and that something is not as it should be.
	exitFindings = 3
)

// exitError ends the program with a code of its own; without an error all is said.
type exitError struct {
	code int
	error
}

func (e *exitError) Unwrap() error { return e.error }

// version is set by the build.
var version = "0.0.0-dev"

func main() {
	klog.SetLogger(logr.Discard()) // Kubernetes' client logs errors that it also returns
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	stdout, stderr := output.NewTerminal(os.Stdout), output.NewTerminal(os.Stderr)
	root := newRoot(genericiooptions.IOStreams{In: os.Stdin, Out: stdout, ErrOut: stderr})
	err := root.ExecuteContext(ctx)
	stop()
	os.Exit(report(err, stderr))
}

// report tells of an error once, and says with what to exit.
func report(err error, to io.Writer) int {
	if err == nil {
		return 0
	}
	code := exitFailure
	var ended *exitError
	if errors.As(err, &ended) {
		code = ended.code
		if ended.error == nil {
			return code
		}
	}
	fmt.Fprintln(to, "error:", printable.Error(err))
	return code
}

// wrong is an error of what was given: then nothing was done.
func wrong(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{exitWrong, err}
}

// found is the end of a command that found something.
func found(format string, args ...any) error {
	return &exitError{exitFindings, fmt.Errorf(format, args...)}
}
