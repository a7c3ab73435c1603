package ocispec

import (
	"encoding/json"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// ParseBase reads the content of a base_runtime_spec; path is for errors. A field
// that OCI does not have is an error, because it would be ignored.
func ParseBase(path, content string) (*specs.Spec, error) {
	s := &specs.Spec{}
	d := json.NewDecoder(strings.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		return nil, unmet("base_runtime_spec %s is not an OCI spec: %s", path, err)
	}
	return s, nil
}
