package ocispec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// LoadBase reads a base_runtime_spec. A field that OCI does not have is an
// error, because it would be ignored.
func LoadBase(path string) (*specs.Spec, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("base_runtime_spec: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	s := &specs.Spec{}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		return nil, unmet("base_runtime_spec %s is not an OCI spec: %s", path, err)
	}
	return s, nil
}
