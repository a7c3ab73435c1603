package validate

import (
	"bytes"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/parser"
)

func containerConfig(field string, c *runtimeapi.ContainerConfig, sandbox *runtimeapi.PodSandboxConfig) error {
	return first(
		func() error { return containerMetadata(field+".metadata", c.GetMetadata()) },
		func() error { return containerImage(field+".image", c.GetImage()) },
		func() error { return process(field, c) },
		func() error { return inside(field+".log_path", c.GetLogPath(), "the sandbox's log_directory") },
		func() error { return known(field+".stop_signal", c.GetStopSignal(), runtimeapi.Signal_name) },
		func() error { return each(field+".mounts", c.GetMounts(), mount) },
		func() error { return each(field+".devices", c.GetDevices(), device) },
		func() error { return each(field+".CDI_devices", c.GetCDIDevices(), cdiDevice) },
		func() error { return resources(field+".linux.resources", c.GetLinux().GetResources()) },
		func() error {
			return containerSecurity(field+".linux.security_context",
				c.GetLinux().GetSecurityContext(), sandbox.GetLinux().GetSecurityContext())
		},
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
	return ImageRef(i.GetImage())
}

// process checks what goes to execve and chdir.
func process(field string, c *runtimeapi.ContainerConfig) error {
	return first(
		func() error { return each(field+".command", c.GetCommand(), withoutNUL) },
		func() error { return each(field+".args", c.GetArgs(), withoutNUL) },
		func() error { return absolute(field+".working_dir", c.GetWorkingDir(), optional) },
		func() error { return each(field+".envs", c.GetEnvs(), env) },
	)
}

// env checks one variable. Values are bytes and need not be UTF-8; an error
// never shows one, because it may be a secret.
func env(field string, e *runtimeapi.KeyValue) error {
	switch {
	case e.GetKey() == "":
		return invalid(field+".key", "is empty; name the variable")
	case strings.Contains(e.GetKey(), "="):
		return invalid(field+".key", "%s contains '='; put the value into value", quoted(e.GetKey()))
	case bytes.IndexByte(e.GetValue(), 0) >= 0:
		return invalid(field+".value", "of %s has a NUL, which ends a string for the kernel; remove it", quoted(e.GetKey()))
	}
	return withoutNUL(field+".key", e.GetKey())
}

func device(field string, d *runtimeapi.Device) error {
	return first(
		func() error { return absolute(field+".host_path", d.GetHostPath(), required) },
		func() error { return absolute(field+".container_path", d.GetContainerPath(), required) },
		func() error {
			if p := d.GetPermissions(); p == "" || strings.Trim(p, "rwm") != "" {
				return invalid(field+".permissions", "%s is not made of r, w and m; use for example rwm", quoted(p))
			}
			return nil
		},
	)
}

func cdiDevice(field string, d *runtimeapi.CDIDevice) error {
	if !parser.IsQualifiedName(d.GetName()) {
		return invalid(field+".name", "%s is not a CDI device; write it as vendor/class=name", quoted(d.GetName()))
	}
	return nil
}
