package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/internal/output"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// outputFlag adds -o, whose value is in form when the command runs.
func outputFlag(c *cobra.Command, form *string) { output.Flag(c, form, misused, output.Forms...) }

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

// stateWord is a state as people write it.
func stateWord(s adminv1.State) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.String(), "STATE_")), "_", "-")
}

// runtimeOf is what a runtime says it is, or "-" if it has not said anything.
func runtimeOf(h *adminv1.Handler) string {
	text := strings.TrimSpace(h.GetRuntimeName() + " " + h.GetRuntimeVersion())
	if text == "" {
		return "-"
	}
	return text
}

// short is the beginning of a digest or id, enough to tell those of a node apart.
func short(digest string) string { return digest[:min(len(digest), 12)] }
