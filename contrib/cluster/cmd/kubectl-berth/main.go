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

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/printable"
)

// exitFindings means that the work was done, and that something is not as it should be.
const exitFindings = 3

// foundError is the end of a command that found something.
type foundError struct{ error }

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

// report writes an error, and returns the exit status.
func report(err error, to io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(to, "error:", printable.Error(err))
	if errors.As(err, new(foundError)) {
		return exitFindings
	}
	return commandline.Status(err)
}

// wrong is an error of what was given: then nothing was done.
func wrong(err error) error {
	if err == nil {
		return nil
	}
	return commandline.Wrong(err)
}

// found is the end of a command that found something.
func found(format string, args ...any) error { return foundError{fmt.Errorf(format, args...)} }
