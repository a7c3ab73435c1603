package ocispec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

// CDIRegistry is what ApplyCDI needs of a *cdi.Cache.
type CDIRegistry interface {
	InjectDevices(spec *specs.Spec, devices ...string) (unresolved []string, err error)
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
	for _, d := range devices {
		if !parser.IsQualifiedName(d) {
			return invalid("CDI device %q is not of the form vendor/class=name", d)
		}
	}
	unknown, err := registry.InjectDevices(s, devices...)
	if len(unknown) > 0 {
		return unmet("CDI device %s is unknown on this node; look into /etc/cdi and /var/run/cdi", strings.Join(unknown, ", "))
	}
	if err != nil {
		return fmt.Errorf("CDI: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return nil
}
