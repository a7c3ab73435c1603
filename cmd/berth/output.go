package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// outputs are the forms of -o.
var outputs = []string{"table", "wide", "json", "yaml"}

// outputFlag adds -o, whose value is in form when the command runs.
func outputFlag(c *cobra.Command, form *string) {
	c.Flags().StringVarP(form, "output", "o", "table", strings.Join(outputs[:len(outputs)-1], ", ")+" or "+outputs[len(outputs)-1])
	if err := c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic("berth: " + err.Error()) // the flag is there, and has none yet
	}
	before := c.PreRunE
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if !slices.Contains(outputs, *form) {
			return misused(c, fmt.Errorf("-o %s is no form of output; it is one of %s", *form, strings.Join(outputs, ", ")))
		}
		if before != nil {
			return before(c, args)
		}
		return nil
	}
}

// wide says whether every column is wanted.
func (r *remote) wide() bool { return r.output == "wide" }

// print writes a message as JSON or YAML, or has table write it.
func (r *remote) print(w io.Writer, m proto.Message, table func(io.Writer) error) error {
	if r.output != "json" && r.output != "yaml" {
		return table(w)
	}
	text, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return err
	}
	// protojson varies its white space on purpose; what scripts read does not.
	if text, err = yaml.JSONToYAML(text); err != nil {
		return err
	}
	if r.output == "json" {
		if text, err = indented(text); err != nil {
			return err
		}
	}
	_, err = w.Write(text)
	return err
}

// encode writes what is no message of the API as JSON or YAML, or has table write it.
func encode(w io.Writer, form string, v any, table func(io.Writer) error) error {
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
