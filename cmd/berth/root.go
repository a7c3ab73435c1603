package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

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
	root.SetFlagErrorFunc(misused)
	root.AddCommand(serveCommand(&serveFlags{}), newCheckCommand(), newConfigCommand(), versionCommand(),
		handlersCommand(), capabilitiesCommand(), handlerCommand(), reloadCommand(), statusCommand(), podsCommand(), podCommand(), checkpointCommand(), whereIsCommand(), imageCommand(),
		doctorCommand(), runtimeclassCommand(), manCommand())
	checkArgs(root)
	root.Version = daemon.ThisBuild().Version
	root.SetVersionTemplate(versionText(daemon.ThisBuild()))
	return root
}

// checkArgs makes wrong arguments of c, and of the commands below it, errors of
// the command line. A command that only has others below it prints its help.
func checkArgs(c *cobra.Command) {
	allowed := c.Args
	if !c.Runnable() {
		allowed = noSubcommand
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	if allowed != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := allowed(c, args); err != nil {
				return misused(c, plainly(c, args, err))
			}
			return nil
		}
	}
	for _, below := range c.Commands() {
		checkArgs(below)
	}
}

// plainly says what is wrong with a number of arguments by the command's usage.
// Other mistakes are told as they are.
func plainly(c *cobra.Command, args []string, err error) error {
	_, wanted, _ := strings.Cut(c.Use, " ")
	switch most := len(strings.Fields(wanted)); {
	case !c.Runnable() || c.HasSubCommands() || strings.Contains(err.Error(), " -c "):
		return err
	case wanted == "" && len(args) > 0:
		return fmt.Errorf("%q takes no arguments, got %q", c.CommandPath(), args[0])
	case len(args) > most:
		return fmt.Errorf("too many arguments, from %q on: %s %s", args[most], c.CommandPath(), wanted)
	case len(args) < most:
		return fmt.Errorf("missing argument: %s %s", c.CommandPath(), wanted)
	}
	return err
}

// noSubcommand is reached with arguments only if no command has their name.
func noSubcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w (did you mean %q?)", err, near[0])
	}
	return err
}

// misused is an error of the command line.
func misused(c *cobra.Command, err error) error {
	return &codedError{exitConfig, fmt.Errorf("%w; see \"%s --help\"", err, c.CommandPath())}
}
