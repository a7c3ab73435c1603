package pod

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// WriteSpec writes the spec of a bundle.
func WriteSpec(bundle string, spec *specs.Spec) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), b, 0o600)
}

// ReadSpec reads the spec of a container's bundle.
func ReadSpec(bundle string) (*specs.Spec, error) {
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(text, spec); err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	spec.Linux = cmp.Or(spec.Linux, &specs.Linux{})
	spec.Linux.Resources = cmp.Or(spec.Linux.Resources, &specs.LinuxResources{})
	return spec, nil
}
