package ocispec

import (
	"fmt"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const allAccess = "rwm"

// setDevices adds the devices of the request and, for privileged containers, the node's. The
// runtime adds the default devices (null, zero, tty, …).
func setDevices(s *specs.Spec, c Container, n Node) error {
	privileged := c.Config.GetLinux().GetSecurityContext().GetPrivileged()
	if privileged && (c.Sandbox.Definition == nil || !c.Sandbox.Definition.PrivilegedWithoutHostDevices) {
		devices, err := n.HostDevices()
		if err != nil {
			return fmt.Errorf("list the devices of the node: %w", err)
		}
		addDevices(s, devices)
		s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: allAccess}}
	}
	for _, d := range c.Config.GetDevices() {
		if err := setDevice(s, d, n); err != nil {
			return err
		}
	}
	return nil
}

func setDevice(s *specs.Spec, d *runtimeapi.Device, n Node) error {
	host, err := n.ResolvePath(d.GetHostPath())
	if err != nil {
		return unmet("device %s: %w", d.GetHostPath(), err)
	}
	devices, err := n.Devices(host, containerPath(d.GetContainerPath()))
	if err != nil {
		return unmet("device %s: %w", d.GetHostPath(), err)
	}
	addDevices(s, devices)
	for _, dev := range devices {
		s.Linux.Resources.Devices = append(s.Linux.Resources.Devices, specs.LinuxDeviceCgroup{
			Allow: true, Type: dev.Type, Major: &dev.Major, Minor: &dev.Minor, Access: d.GetPermissions(),
		})
	}
	return nil
}

// addDevices adds devices to s. Each replaces an earlier device at the same path.
func addDevices(s *specs.Spec, devices []specs.LinuxDevice) {
	for _, d := range devices {
		same := func(o specs.LinuxDevice) bool { return o.Path == d.Path }
		if i := slices.IndexFunc(s.Linux.Devices, same); i >= 0 {
			s.Linux.Devices[i] = d
			continue
		}
		s.Linux.Devices = append(s.Linux.Devices, d)
	}
}
