package testbed

import (
	"cmp"
	"os"
)

const (
	cgroupfsDriver = "cgroupfs"
	systemdDriver  = "systemd"
)

// cgroupDriver is BERTH_TEST_CGROUP_DRIVER. The default is what every host has.
// With systemd pods are in its own slice, and what they leave there is not looked
// for.
func cgroupDriver() string {
	return cmp.Or(os.Getenv("BERTH_TEST_CGROUP_DRIVER"), cgroupfsDriver)
}

// SystemdCgroups says whether systemd makes the cgroups of pods.
func SystemdCgroups() bool { return cgroupDriver() == systemdDriver }
