package output

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/internal/commandline"
)

// Forms are the output formats of a result; the first is the default.
var Forms = []string{"table", "wide", "json", "yaml"}

// Flag adds -o with the values in forms, the first by default, and stores its value in form.
func Flag(c *cobra.Command, form *string, forms ...string) {
	last := len(forms) - 1
	c.Flags().StringVarP(form, "output", "o", forms[0], strings.Join(forms[:last], ", ")+" or "+forms[last])
	if err := c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic("berth: " + err.Error()) // cannot happen: the flag exists and had no completion
	}
	before := c.PreRunE
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if !slices.Contains(forms, *form) {
			return commandline.Misused(c, fmt.Errorf("unknown output format -o %s; use one of %s", *form, strings.Join(forms, ", ")))
		}
		if before != nil {
			return before(c, args)
		}
		return nil
	}
}

// TableFlags holds the flags of a command that prints a table.
type TableFlags struct{ noHeaders, quiet bool }

// NoHeadersFlag adds --no-headers.
func (f *TableFlags) NoHeadersFlag(c *cobra.Command) {
	c.Flags().BoolVar(&f.noHeaders, "no-headers", false, "omit the header of the table")
}

// ListFlags adds --no-headers, and -q for a table with names. Call it after Flag, which adds -o.
func (f *TableFlags) ListFlags(c *cobra.Command, names string) {
	f.NoHeadersFlag(c)
	c.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print only "+names+", one per line")
	c.MarkFlagsMutuallyExclusive("quiet", "output")
}

// Table returns the function for Encode that writes a table as the flags require.
func (f *TableFlags) Table(t *Table) func(io.Writer) error {
	if f.quiet {
		return Lines(t.Names)
	}
	t.noHeader = f.noHeaders
	return t.Write
}

// Encode writes a value as JSON or YAML, or calls table.
func Encode(w io.Writer, form string, v any, table func(io.Writer) error) error {
	switch form {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(v)
	case "yaml":
		text, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	return table(w)
}

// Line returns the function for Encode that writes one line.
func Line(format string, args ...any) func(io.Writer) error {
	return Lines([]string{fmt.Sprintf(format, args...)})
}

// Lines returns the function for Encode that writes lines.
func Lines(lines []string) func(io.Writer) error {
	return func(w io.Writer) error {
		for _, line := range lines {
			if _, err := fmt.Fprintln(w, line); err != nil {
				return err
			}
		}
		return nil
	}
}

// Fields returns the function for Encode that writes names with their texts; empty texts are left
// out.
func Fields(fields [][2]string) func(io.Writer) error {
	width := 0
	for _, f := range fields {
		width = max(width, len(f[0]+":"))
	}
	var lines []string
	for _, f := range fields {
		if f[1] != "" {
			lines = append(lines, fmt.Sprintf("%-*s %s", width, f[0]+":", f[1]))
		}
	}
	return Lines(lines)
}

// Count returns "1 pod" or "2 pods".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Pods returns a count of pods.
func Pods[N int | int32](n N) string { return Count(int(n), "pod", "pods") }
