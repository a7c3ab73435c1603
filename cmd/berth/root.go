package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/pkg/daemon"
)

// newRoot makes the whole command tree.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "A CRI daemon that runs each pod on the runtime that its handler names",
		Long: "berth serves the Kubernetes CRI on one unix socket, and forwards each pod sandbox, with\n" +
			"every later call about it, to the runtime that its RuntimeClass handler names.\n\n" +
			"Exit status: 0 on success, 2 if the configuration or the command line is wrong, 3 if\n" +
			"the command succeeded and found something that needs attention, 1 for any other\n" +
			"failure.",
		// Errors are printed once, by main, and without a page of usage.
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(serveCommand(&serveFlags{}), newCheckCommand(), newConfigCommand(), versionCommand(),
		handlersCommand(), capabilitiesCommand(), handlerCommand(), reloadCommand(), statusCommand(), eventsCommand(), podsCommand(), podCommand(), checkpointCommand(), whereIsCommand(), imageCommand(),
		doctorCommand(), manCommand())
	commandline.Check(root, func(err error) error { return &codedError{exitConfig, err} })
	// Without a template of its own: text/template keeps the linker from leaving
	// out methods that nothing calls, which costs 6 MB.
	root.Version = versionText(daemon.ThisBuild())
	return root
}

func misused(c *cobra.Command, err error) error {
	return &codedError{exitConfig, fmt.Errorf("%w; see \"%s --help\"", err, c.CommandPath())}
}
