// Package validate says whether a CRI request makes sense, before anything is
// done about it.
//
// Every function is pure: it reads the request and nothing else, so it says the
// same on every node. What depends on the node (does the file exist, does the
// kernel have it) or on the handler (can the runtime do it) is checked where it
// is used.
//
// Each error is of class errdefs.ErrInvalidArgument and reads
// "<field>: <what is wrong>; <what to do>", with the field as the CRI names it.
// Values are quoted and cut, so that no request can make a message of more than
// 1 KiB. Only the first mistake is reported.
//
// The rules are those of the CRI's own comments and of the kernel. Where both
// containerd and CRI-O take something odd, it is taken here too: a kubelet that
// works with them must work with berth.
package validate

import (
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunPodSandbox checks the configuration of a new sandbox.
func RunPodSandbox(req *runtimeapi.RunPodSandboxRequest) error {
	if req.GetConfig() == nil {
		return invalid("config", "is missing; send the pod's PodSandboxConfig")
	}
	return sandboxConfig("config", req.GetConfig())
}

// CreateContainer checks the configuration of a new container against itself
// and against the sandbox that it goes into: sandbox is the configuration that
// the sandbox was created with, which is trusted over the copy in req. A nil
// sandbox stands for one with nothing set.
func CreateContainer(req *runtimeapi.CreateContainerRequest, sandbox *runtimeapi.PodSandboxConfig) error {
	if err := ID("pod_sandbox_id", req.GetPodSandboxId()); err != nil {
		return err
	}
	if req.GetConfig() == nil {
		return invalid("config", "is missing; send the ContainerConfig")
	}
	if err := absolute("sandbox_config.log_directory", req.GetSandboxConfig().GetLogDirectory(), optional); err != nil {
		return err
	}
	return containerConfig("config", req.GetConfig(), sandbox)
}

// UpdateContainerResources checks new limits. Zero values mean "unchanged" and
// are always allowed.
func UpdateContainerResources(req *runtimeapi.UpdateContainerResourcesRequest) error {
	if err := ID("container_id", req.GetContainerId()); err != nil {
		return err
	}
	if req.GetLinux() == nil {
		return invalid("linux", "is missing; send the LinuxContainerResources to apply")
	}
	return resources("linux", req.GetLinux())
}

// invalid is the one place that gives a mistake its class and shape.
func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

// first runs the checks in order and returns the first mistake.
func first(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// each checks every item of a list, and names it by its index.
func each[T any](field string, items []T, check func(field string, item T) error) error {
	for i, item := range items {
		if err := check(fmt.Sprintf("%s[%d]", field, i), item); err != nil {
			return err
		}
	}
	return nil
}

// known checks an enumeration: the generated names are the values that this
// build understands, and acting on another one would be a guess.
func known[E ~int32](field string, value E, names map[int32]string) error {
	if _, ok := names[int32(value)]; ok {
		return nil
	}
	return invalid(field, "%d is not a known value; use one of %s", value, listed(names))
}

// listed gives the names of an enumeration in the order of their numbers, and
// only the first few of a long one.
func listed(names map[int32]string) string {
	const most = 8
	text := ""
	for i, n := range slices.Sorted(maps.Keys(names)) {
		if i == most {
			return text + ", …"
		}
		if i > 0 {
			text += ", "
		}
		text += names[n]
	}
	return text
}
