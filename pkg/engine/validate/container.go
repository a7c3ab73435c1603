package validate

import (
	"bytes"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

func containerConfig(field string, c *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	return first(
		containerMetadata(field+".metadata", c.GetMetadata()),
		containerImage(field+".image", c.GetImage()),
		process(field, c),
		inside(field+".log_path", c.GetLogPath(), "the sandbox's log_directory"),
		known(field+".stop_signal", c.GetStopSignal(), runtimeapi.Signal_name),
		each(field+".mounts", c.GetMounts(), mount),
		each(field+".devices", c.GetDevices(), device),
		each(field+".CDI_devices", c.GetCDIDevices(), cdiDevice),
		resources(field+".linux.resources", c.GetLinux().GetResources()),
		containerSecurity(field+".linux.security_context", c.GetLinux().GetSecurityContext(), sandbox.GetLinux().GetSecurityContext()),
	)
}

func containerMetadata(field string, m *runtimeapi.ContainerMetadata) error {
	if m == nil {
		return invalid(field, "is missing; send the container's name")
	}
	return name(field+".name", m.GetName())
}

func containerImage(field string, i *runtimeapi.ImageSpec) error {
	if i.GetImage() == "" {
		return invalid(field, "is missing; send the image that PullImage returned")
	}
	return checkImageRef(i.GetImage())
}

// process checks the input of execve and chdir.
func process(field string, c *runtimeapi.ContainerConfig) error {
	return first(
		each(field+".command", c.GetCommand(), withoutNUL),
		each(field+".args", c.GetArgs(), withoutNUL),
		absolute(field+".working_dir", c.GetWorkingDir(), optional),
		each(field+".envs", c.GetEnvs(), env),
	)
}

// env checks one variable. Values are bytes and need not be UTF-8; an error never contains a value,
// because it may be a secret.
func env(field string, e *runtimeapi.KeyValue) error {
	switch {
	case e.GetKey() == "":
		return invalid(field+".key", "is empty; name the variable")
	case strings.Contains(e.GetKey(), "="):
		return invalid(field+".key", "%s contains '='; put the value into value", quoted(e.GetKey()))
	case bytes.IndexByte(e.GetValue(), 0) >= 0:
		return invalid(field+".value", "the value of %s has a NUL, which ends a string for the kernel; remove it", quoted(e.GetKey()))
	}
	return withoutNUL(field+".key", e.GetKey())
}

func device(field string, d *runtimeapi.Device) error {
	p := d.GetPermissions()
	return first(
		absolute(field+".host_path", d.GetHostPath(), required),
		absolute(field+".container_path", d.GetContainerPath(), required),
		invalidIf(p == "" || strings.Trim(p, "rwm") != "", field+".permissions", "%s is not made of r, w and m; use for example rwm", quoted(p)),
	)
}

func cdiDevice(field string, d *runtimeapi.CDIDevice) error {
	return invalidIf(!parser.IsQualifiedName(d.GetName()), field+".name",
		"%s is not a CDI device; write it as vendor/class=name", quoted(d.GetName()))
}
