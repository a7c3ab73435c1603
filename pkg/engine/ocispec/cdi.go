package ocispec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// CDIRegistry is what ApplyCDI needs of a *cdi.Cache.
type CDIRegistry interface {
	InjectDevices(spec *specs.Spec, devices ...string) (unresolved []string, err error)
	// GetErrors says, by file, which specs could not be used.
	GetErrors() map[string][]error
	GetSpecDirectories() []string
}

var _ CDIRegistry = (*cdi.Cache)(nil)

// CDIDevices lists the CDI devices that a container asks for, by field and by
// the older cdi.k8s.io/ annotations, each once.
func CDIDevices(cfg *runtimeapi.ContainerConfig) ([]string, error) {
	var out []string
	for _, d := range cfg.GetCDIDevices() {
		if !slices.Contains(out, d.GetName()) {
			out = append(out, d.GetName())
		}
	}
	_, annotated, err := cdi.ParseAnnotations(cfg.GetAnnotations())
	if err != nil {
		return nil, invalid("annotations %s: %s", cdi.AnnotationPrefix, err)
	}
	for _, name := range annotated {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out, nil
}

// ApplyCDI adds what the registry says about the devices to s: environment,
// nodes, mounts, hooks, groups. A device that the registry does not know is an
// error, and s is then unchanged. Call Fit afterwards.
func ApplyCDI(s *specs.Spec, devices []string, registry CDIRegistry) error {
	if len(devices) == 0 {
		return nil
	}
	unknown, err := registry.InjectDevices(s, devices...)
	if len(unknown) > 0 {
		return unmet("CDI device %s: not found in the specs in %s (cdi_spec_dirs)%s",
			strings.Join(unknown, ", "), strings.Join(registry.GetSpecDirectories(), ", "), unusable(registry))
	}
	if err != nil {
		return fmt.Errorf("CDI: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// unusable says which specs the registry could not use: the device may be in one of them.
func unusable(registry CDIRegistry) string {
	const most = 3 // an error ends up in an event
	byFile := registry.GetErrors()
	files := slices.Sorted(maps.Keys(byFile))
	var b strings.Builder
	for _, file := range files[:min(len(files), most)] {
		reason := strings.ReplaceAll(errors.Join(byFile[file]...).Error(), "\n", "; ")
		fmt.Fprintf(&b, "; %s cannot be used: %s", file, reason)
	}
	if more := len(files) - most; more > 0 {
		fmt.Fprintf(&b, "; nor can %d more files", more)
	}
	return b.String()
}
