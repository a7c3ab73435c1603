package main

import "github.com/spf13/cobra"

// handlerCommand makes "berth handler".
func handlerCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "handler",
		Short: "Show, change and operate one handler",
		Args:  cobra.NoArgs,
	}
	c.AddCommand(handlerShowCommand(), capabilitiesCommand(), handlerProbeCommand(), handlerOverheadCommand(),
		handlerAddCommand(), handlerEditCommand(), handlerRemoveCommand(),
		handlerCordonCommand(), handlerUncordonCommand(), handlerDrainCommand(),
		handlerPromoteCommand(), handlerAbortCommand())
	return c
}
