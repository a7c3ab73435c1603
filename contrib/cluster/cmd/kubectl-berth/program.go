package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-cri/berth/internal/commandline"
)

// exitFindings means that the work was done, and that something is not as it should be.
const exitFindings = 3

// foundError is the end of a command that found something.
type foundError struct{ error }

// version is set by the build.
var version = "0.0.0-dev"

// wrong is an error of what was given: then nothing was done.
func wrong(err error) error {
	if err == nil {
		return nil
	}
	return commandline.Wrong(err)
}

// found is the end of a command that found something.
func found(format string, args ...any) error { return foundError{fmt.Errorf(format, args...)} }

// program is what all commands have in common.
type program struct {
	genericiooptions.IOStreams
	config *genericclioptions.ConfigFlags
}

// misused is an error of the command line.
func misused(c *cobra.Command, err error) error {
	return wrong(fmt.Errorf("%w; see \"%s --help\"", err, c.CommandPath()))
}

// note is about something that is no mistake.
func (p *program) note(format string, args ...any) {
	fmt.Fprintf(p.ErrOut, "note: "+format+"\n", args...)
}
