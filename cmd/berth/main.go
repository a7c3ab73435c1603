// Command berth is the daemon and the operator's commands in one binary. It only translates flags,
// signals and the environment into calls of packages.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/cmd/berth/internal/checkpoints"
	"github.com/berth-cri/berth/cmd/berth/internal/configuration"
	"github.com/berth-cri/berth/cmd/berth/internal/handlers"
	"github.com/berth-cri/berth/cmd/berth/internal/images"
	"github.com/berth-cri/berth/cmd/berth/internal/node"
	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/manual"
	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/daemon"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	stdout, stderr = output.NewTerminal(stdout), output.NewTerminal(stderr)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return commandline.Report(stderr, "berth:", root.ExecuteContext(ctx))
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "A CRI daemon that runs each pod on the runtime that its handler names",
		Long: "berth serves the Kubernetes CRI on one unix socket. It runs each pod on the runtime that\n" +
			"the pod's RuntimeClass handler names.\n\n" +
			"Exit status: 0 on success, 2 if the configuration or the command line is wrong, 3 if\n" +
			"the command succeeded and found something that needs attention, 1 for any other\n" +
			"failure.",
		Example: "  berth status\n  berth handlers\n  berth doctor",
		// main prints errors once, without usage text.
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	man := manual.Command("8", "berth "+daemon.ThisBuild().Version)
	man.Example = "  berth man /usr/local/share/man/man8"
	root.AddCommand(
		serveCommand(&serveFlags{}), versionCommand(), man,
		configuration.CheckCommand(), configuration.ConfigCommand(), configuration.ReloadCommand(),
		handlers.ListCommand(), handlers.CapabilitiesCommand(), handlers.Command(),
		node.StatusCommand(), node.EventsCommand(), node.PodsCommand(), node.WhereIsCommand(), node.DoctorCommand(),
		images.Command(), checkpoints.PodCommand(), checkpoints.Command(),
	)
	commandline.Check(root)
	// The version has no template: text/template keeps the linker from removing unused methods,
	// which costs 6 MB.
	root.Version = versionText(daemon.ThisBuild())
	return root
}

func versionCommand() *cobra.Command {
	form := ""
	c := &cobra.Command{
		Use:     "version",
		Short:   "Print version information",
		Example: "  berth version\n  berth version -o json",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			b := daemon.ThisBuild()
			return output.Encode(c.OutOrStdout(), form, b, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "berth version %s\n", versionText(b))
				return err
			})
		},
	}
	output.Flag(c, &form, output.Forms...)
	return c
}

func versionText(b daemon.Build) string {
	revision := ""
	if b.Revision != "" {
		revision = " (" + b.Revision + ")"
	}
	return fmt.Sprintf("%s%s, CRI %s, %s %s", b.Version, revision, b.CRI, b.Go, b.Platform)
}
