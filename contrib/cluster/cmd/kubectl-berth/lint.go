package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/output"
)

type lintFlags struct {
	handlers, measurements string
	strict                 bool
	output                 string
}

// lintCommand is "lint".
type lintCommand struct{ *program }

func (p *lintCommand) command() *cobra.Command {
	f := &lintFlags{}
	c := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Find problems in RuntimeClasses",
		Long: `Find problems in RuntimeClasses that "kubectl apply --dry-run=server" does not: versions that
are no longer served, names that are not allowed, handlers that do not exist or accept no
pods, by --handlers, and overhead below what was measured, by --handlers or
--measurements. Warnings only fail the command with --strict.`,
		Example: "  kubectl berth lint classes.yaml --handlers handlers.json\n  kubectl get runtimeclass -o yaml | kubectl berth lint - --measurements overhead.yaml",
		Args:    cobra.MinimumNArgs(1),
		RunE:    func(_ *cobra.Command, args []string) error { return p.lint(f, args) },
	}
	c.Flags().StringVar(&f.handlers, "handlers", "", "names separated by commas, or a `FILE` of handlers, that exist")
	c.Flags().StringVar(&f.measurements, "measurements", "", "`FILE` of handlers with measured overhead")
	c.Flags().BoolVar(&f.strict, "strict", false, "fail on warnings")
	output.Flag(c, &f.output, output.Forms...)
	return c
}

// linted is what lint prints.
type linted struct {
	Classes  int                    `json:"classes"`
	Errors   int                    `json:"errors"`
	Warnings int                    `json:"warnings"`
	Findings []runtimeclass.Finding `json:"findings"`
}

func (p *lintCommand) lint(f *lintFlags, files []string) error {
	o, err := p.options(f)
	if err != nil {
		return err
	}
	// What can be read is checked, also beside what cannot.
	objects, mistakes := p.objects(files)
	if err := p.want(objects, files, "RuntimeClass", isClass); err != nil && mistakes == nil {
		return err
	}
	classes := runtimeclass.Classes(objects)
	l := linted{Classes: len(classes), Findings: []runtimeclass.Finding{}}
	for _, found := range runtimeclass.Lint(classes, o) {
		if found.Severity == runtimeclass.Error {
			l.Errors++
		} else {
			l.Warnings++
		}
		l.Findings = append(l.Findings, found)
	}
	if err := output.Encode(p.Out, f.output, l, func(to io.Writer) error { return printFindings(to, l.Findings) }); err != nil {
		return err
	}
	if slices.ContainsFunc(classes, func(c runtimeclass.Class) bool { return runtimeclass.Counted(c.RuntimeClass) }) {
		p.note("pods of classes with a resource handler.NAME.pods stay pending unless berth-controller runs; \"kubectl berth audit\" shows whether nodes have it")
	}
	if mistakes != nil {
		return mistakes
	}
	if l.Errors > 0 || f.strict && l.Warnings > 0 {
		return found("%s and %s in %s", output.Count(l.Errors, "error", "errors"), output.Count(l.Warnings, "warning", "warnings"), output.Count(l.Classes, "RuntimeClass", "RuntimeClasses"))
	}
	return nil
}

func (p *lintCommand) options(f *lintFlags) (o runtimeclass.LintOptions, err error) {
	switch {
	case f.handlers != "":
		if o.Handlers, err = p.handlers(f.handlers); err == nil {
			o.Handlers, err = p.measured(o.Handlers, f.measurements)
		}
	case f.measurements != "":
		o.MeasuredOnly = true
		o.Handlers, err = p.inventory(f.measurements)
	}
	return o, err
}

// printFindings writes them as compilers do: no table has the room for them.
func printFindings(w io.Writer, all []runtimeclass.Finding) error {
	var b strings.Builder
	for _, f := range all {
		fmt.Fprintln(&b, f)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
