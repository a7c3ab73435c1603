package ocispec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// CDIDevices lists the CDI devices of a container, from the field and the older cdi.k8s.io/
// annotations, each once.
func CDIDevices(cfg *runtimeapi.ContainerConfig) ([]string, error) {
	_, annotated, err := cdi.ParseAnnotations(cfg.GetAnnotations())
	if err != nil {
		return nil, invalid("annotations %s: %s", cdi.AnnotationPrefix, err)
	}
	var names []string
	for _, d := range cfg.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	return union(nil, append(names, annotated...)), nil
}

// ApplyCDI adds to s what the registry has for devices: environment, device nodes, mounts, hooks
// and groups. If a device is unknown, it returns an error and leaves s unchanged. Call Fit
// afterwards.
func ApplyCDI(s *specs.Spec, devices []string, registry *cdi.Cache) error {
	if len(devices) == 0 {
		return nil
	}
	unknown, err := registry.InjectDevices(s, devices...)
	if len(unknown) > 0 {
		return unmet("CDI device %s: not found in the specs in %s (cdi_spec_dirs)%s",
			strings.Join(unknown, ", "), strings.Join(registry.GetSpecDirectories(), ", "), unusable(registry))
	}
	if err != nil {
		return unmet("CDI: %w", err)
	}
	return nil
}

// unusable lists the specs that the registry could not use, because the device may be in one of
// them.
func unusable(registry *cdi.Cache) string {
	const most = 3 // the error becomes part of an event
	byFile := registry.GetErrors()
	files := slices.Sorted(maps.Keys(byFile))
	var b strings.Builder
	for _, file := range files[:min(len(files), most)] {
		reason := strings.ReplaceAll(errors.Join(byFile[file]...).Error(), "\n", "; ")
		fmt.Fprintf(&b, "; %s cannot be used: %s", file, reason)
	}
	if more := len(files) - most; more > 0 {
		fmt.Fprintf(&b, "; %d more cannot be used", more)
	}
	return b.String()
}
