// Package classrun does the work of "berth runtimeclass": it reads what
// pkg/runtimeclass decides about, and prints what it says.
package classrun

import (
	"context"
	"fmt"

	"github.com/berth-cri/berth/cmd/internal/classcmd"
	"github.com/berth-cri/berth/cmd/internal/manifests"
)

// Run does the work of a command line.
func Run(ctx context.Context, c classcmd.Call) error {
	r := &runner{Call: c, ctx: ctx, files: manifests.Reader{Stdin: c.Stdin}}
	switch c.Command {
	case "generate":
		return r.generate()
	case "lint":
		return r.lint()
	case "migrate":
		return r.migrate()
	case "simulate":
		return r.simulate()
	case "fit":
		return r.fit()
	}
	return wrong(fmt.Errorf("there is no command %q", c.Command))
}

type runner struct {
	classcmd.Call
	ctx   context.Context
	files manifests.Reader
}

// wrong is an error of what was given.
func wrong(err error) error { return &classcmd.Exit{Code: classcmd.Wrong, Err: err} }

// found is the end of a command that found something.
func found(format string, args ...any) error {
	return &classcmd.Exit{Code: classcmd.Findings, Err: fmt.Errorf(format, args...)}
}

// note is about something that is no mistake.
func (r *runner) note(format string, args ...any) {
	fmt.Fprintf(r.Stderr, "note: "+format+"\n", args...)
}

// plural is "1 pod" or "2 pods".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
