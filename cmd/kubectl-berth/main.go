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

	"golang.org/x/sys/unix"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-cri/berth/cmd/internal/classcmd"
	"github.com/berth-cri/berth/cmd/internal/output"
)

// version is set by the build.
var version = "0.0.0-dev"

func main() {
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
	code := classcmd.Findings
	var exit *classcmd.Exit
	if errors.As(err, &exit) {
		code = exit.Code
		if exit.Err == nil {
			return code
		}
	}
	fmt.Fprintln(to, "error:", err)
	return code
}

// wrong is an error of what was given: then nothing was done.
func wrong(err error) error { return &classcmd.Exit{Code: classcmd.Wrong, Err: err} }

// found is the end of a command that found something.
func found(format string, args ...any) error {
	return &classcmd.Exit{Code: classcmd.Findings, Err: fmt.Errorf(format, args...)}
}
