// Package commandline has the exit statuses of all programs, and errors for wrong command lines.
package commandline

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/pkg/printable"
)

// Exit statuses of a program, besides 0.
const (
	// Failed is any failure without its own status.
	Failed = 1
	// Mistaken means that the configuration, or the command line, is wrong.
	Mistaken = 2
	// Degraded means that the command succeeded and found a problem.
	Degraded = 3
)

// statusError is an error with its own exit status.
type statusError struct {
	status int
	error
}

func (e statusError) Unwrap() error { return e.error }

// Wrong marks a mistake in the input: nothing was done. Nil stays nil.
func Wrong(err error) error {
	if err == nil {
		return nil
	}
	return statusError{Mistaken, err}
}

// Found ends a command that succeeded and found a problem.
func Found(format string, args ...any) error {
	return statusError{Degraded, fmt.Errorf(format, args...)}
}

// Shown ends a command that has already printed the reason, with the given exit status.
func Shown(status int) error { return statusError{status, errors.New("")} }

// Status returns the exit status of a program that ends with err.
func Status(err error) int {
	if own := (statusError{}); errors.As(err, &own) {
		return own.status
	}
	if err != nil {
		return Failed
	}
	return 0
}

// Report prints an error after the program's prefix, and returns the exit status.
func Report(stderr io.Writer, prefix string, err error) int {
	if err != nil && err.Error() != "" {
		fmt.Fprintln(stderr, prefix, printable.Error(err))
	}
	return Status(err)
}

// Misused marks a mistake in the command line of c.
func Misused(c *cobra.Command, err error) error {
	return Wrong(fmt.Errorf("%w; see \"%s --help\"", err, c.CommandPath()))
}

// Check turns wrong flags and arguments of a command, and of its subcommands, into errors of
// Misused. A command that only has subcommands prints its help.
func Check(c *cobra.Command) {
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		// The flags of an unknown command are unknown, too.
		if args := c.Flags().Args(); c.HasSubCommands() && len(args) > 0 {
			err = noSubcommand(c, args)
		}
		return Misused(c, err)
	})
	check(c)
}

func check(c *cobra.Command) {
	allowed := c.Args
	if !c.Runnable() {
		allowed = noSubcommand
		c.SuggestionsMinimumDistance = 2 // cobra's default for other commands
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if allowed != nil {
			if err := allowed(c, args); err != nil {
				return Misused(c, usageError(c, args, err))
			}
		}
		if err := checkFlags(c); err != nil {
			return Misused(c, err)
		}
		return nil
	}
	for _, below := range c.Commands() {
		check(below)
	}
}

var (
	missing = regexp.MustCompile(`^required flag\(s\) "([^"]+)"`)
	oneOf   = regexp.MustCompile(`^at least one of the flags in the group \[(.+)\] is required$`)
	several = regexp.MustCompile(`none of the others can be; \[(.+)\] were all set$`)
)

// checkFlags returns an error if flags are missing, or exclude each other.
func checkFlags(c *cobra.Command) error {
	err := errors.Join(c.ValidateRequiredFlags(), c.ValidateFlagGroups())
	if err == nil {
		return nil
	}
	if m := several.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("use only one of --%s", strings.Join(strings.Fields(m[1]), ", --"))
	}
	if m := oneOf.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("--%s is needed", strings.Join(strings.Fields(m[1]), " or --"))
	}
	if m := missing.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("--%s is needed", m[1])
	}
	return err
}

// usageError describes a wrong number of arguments by the command's usage. Other errors are
// unchanged.
func usageError(c *cobra.Command, args []string, err error) error {
	_, wanted, _ := strings.Cut(c.Use, " ")
	switch most := len(strings.Fields(wanted)); {
	case c.HasSubCommands() || strings.Contains(err.Error(), " -c "):
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

// noSubcommand refuses arguments: it gets them only if no subcommand has their name.
func noSubcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], c.CommandPath())
	near := c.SuggestionsFor(args[0])
	if list, _, _ := c.Root().Find([]string{c.Name() + "s"}); list.HasParent() && (args[0] == "ls" || args[0] == "list") {
		near = []string{list.CommandPath()} // "berth pods" lists what "berth pod" handles
	}
	if len(near) > 0 {
		err = fmt.Errorf("%w (did you mean %q?)", err, near[0])
	}
	return err
}
