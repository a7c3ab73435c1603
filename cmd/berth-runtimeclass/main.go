// Command berth-runtimeclass does the work of "berth runtimeclass", which starts it.
// It is a program of its own because the types of Kubernetes' API would otherwise be
// part of the daemon, which has no use for them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/internal/classcmd"
	"github.com/berth-cri/berth/cmd/internal/classrun"
	"github.com/berth-cri/berth/cmd/internal/output"
)

func main() {
	misused := func(_ *cobra.Command, err error) error { return &classcmd.Exit{Code: classcmd.Wrong, Err: err} }
	root := classcmd.New(classrun.Run, misused)
	root.Use, root.SilenceErrors, root.SilenceUsage = classcmd.Program, true, true
	root.SetFlagErrorFunc(misused)
	stderr := output.NewTerminal(os.Stderr)
	root.SetOut(output.NewTerminal(os.Stdout))
	root.SetErr(stderr)
	os.Exit(report(root.ExecuteContext(context.Background()), stderr))
}

func report(err error, stderr io.Writer) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "berth:", err)
	var exit *classcmd.Exit
	if errors.As(err, &exit) {
		return exit.Code
	}
	return classcmd.Findings
}
