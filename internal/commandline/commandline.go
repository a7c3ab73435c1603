// Package commandline has all programs say the same of a command line that is wrong.
package commandline

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// suggestionDistance is how many letters a name may differ by, to be the one that was meant.
const suggestionDistance = 2

// wrongError is a mistake in what was given.
type wrongError struct{ error }

func (e wrongError) Unwrap() error { return e.error }

// Wrong marks a mistake in what was given, for Status: nothing was done.
func Wrong(err error) error { return wrongError{err} }

// Status is with what a program exits that has failed: 2 if Wrong says so, else 1.
func Status(err error) int {
	if given := (wrongError{}); errors.As(err, &given) {
		return 2
	}
	return 1
}

// Check makes wrong flags and arguments of a command, and of those below it, errors that
// wrong makes of the mistake. A command that only has others below it prints its help.
func Check(c *cobra.Command, wrong func(error) error) {
	misused := func(c *cobra.Command, err error) error {
		return wrong(fmt.Errorf("%w; see \"%s --help\"", err, c.CommandPath()))
	}
	c.SetFlagErrorFunc(misused)
	check(c, misused)
}

func check(c *cobra.Command, misused func(*cobra.Command, error) error) {
	allowed := c.Args
	if !c.Runnable() {
		allowed = noSubcommand
		c.SuggestionsMinimumDistance = suggestionDistance
		c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	if c.Runnable() {
		c.Args = func(c *cobra.Command, args []string) error {
			if allowed != nil {
				if err := allowed(c, args); err != nil {
					return misused(c, plainly(c, args, err))
				}
			}
			if err := together(c); err != nil {
				return misused(c, err)
			}
			return nil
		}
	}
	for _, below := range c.Commands() {
		check(below, misused)
	}
}

var (
	missing = regexp.MustCompile(`^required flag\(s\) "([^"]+)"`)
	oneOf   = regexp.MustCompile(`^at least one of the flags in the group \[(.+)\] is required$`)
	several = regexp.MustCompile(`none of the others can be; \[(.+)\] were all set$`)
)

// together says whether flags are missing, or exclude each other.
func together(c *cobra.Command) error {
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

// plainly says what is wrong with a number of arguments by the command's usage.
// Other mistakes are told as they are.
func plainly(c *cobra.Command, args []string, err error) error {
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
