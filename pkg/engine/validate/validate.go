// Package validate checks CRI requests before anything is done.
//
// Every function is pure: it reads only the request, so its result is the same on every node.
// Conditions that depend on the node (does the file exist, does the kernel support it) or on the
// handler (does the runtime support it) are checked where they are used.
//
// Each error is of class errdefs.ErrInvalidArgument and reads "<field>: <what is wrong>; <what to
// do>", with the CRI's name of the field. Values are quoted and cut, so that messages stay short.
// Only the first mistake is reported.
//
// The rules are those of the CRI's own comments and of the kernel. Odd values that both containerd
// and CRI-O accept are accepted here too: a kubelet that works with them must work with berth.
package validate

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// RunPodSandbox checks the configuration of a new sandbox.
func RunPodSandbox(req *runtimeapi.RunPodSandboxRequest) error {
	if req.GetConfig() == nil {
		return invalid("config", "is missing; send the pod's PodSandboxConfig")
	}
	return sandboxConfig("config", req.GetConfig())
}

// CreateContainer checks the configuration of a new container against itself and against sandbox,
// the configuration that its sandbox was created with. The copy of that in req is not trusted. A
// nil sandbox is an empty configuration.
func CreateContainer(req *runtimeapi.CreateContainerRequest, sandbox *runtimeapi.PodSandboxConfig) error {
	return first(
		checkID("pod_sandbox_id", req.GetPodSandboxId()),
		invalidIf(req.GetConfig() == nil, "config", "is missing; send the ContainerConfig"),
		absolute("sandbox_config.log_directory", req.GetSandboxConfig().GetLogDirectory(), optional),
		containerConfig("config", req.GetConfig(), sandbox),
	)
}

// UpdateContainerResources checks new limits. Zero values mean "unchanged" and are always allowed.
func UpdateContainerResources(req *runtimeapi.UpdateContainerResourcesRequest) error {
	return first(
		checkID("container_id", req.GetContainerId()),
		invalidIf(req.GetLinux() == nil, "linux", "is missing; send the LinuxContainerResources to apply"),
		resources("linux", req.GetLinux()),
	)
}
