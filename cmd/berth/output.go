package main

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/internal/output"
)

// outputFlag adds -o, whose value is in form when the command runs.
func outputFlag(c *cobra.Command, form *string) { output.Flag(c, form, misused, output.Forms...) }

// wide says whether every column is wanted.
func (r *remote) wide() bool { return r.output == "wide" }

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
	return output.Encode(w, form, v, table)
}

// indented turns YAML into JSON for people and scripts alike.
func indented(text []byte) ([]byte, error) {
	text, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}
