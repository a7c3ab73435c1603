// Package cgroup finds a container's cgroup, reads its usage, and cleans up after it.
//
// Runtimes create the cgroups of containers and set their limits; the kubelet owns those of pods.
// This package reads cgroups, and kills and removes those of containers. It reads only the files
// for which the CRI has fields: the general libraries read some thirty per container, which with
// forty pods costs ten times the budget of a list of statistics.
//
// The mount points of the hierarchies are read once per process.
package cgroup

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/coreos/go-systemd/v22/util"
)

// Driver is what creates cgroups: the runtime itself, or systemd on its behalf.
type Driver string

const (
	// Cgroupfs makes the runtime create directories.
	Cgroupfs Driver = "cgroupfs"
	// Systemd makes the runtime request a scope from systemd.
	Systemd Driver = "systemd"
)

// systemdTimeout limits the check whether systemd answers.
const systemdTimeout = 2 * time.Second

// Detect returns the driver for want: "cgroupfs", "systemd" or "auto" (also ""). With auto it is
// systemd if that is pid 1 and answers on D-Bus, as the kubelet's documentation advises, and
// otherwise cgroupfs. The error is errdefs.ErrFailedPrecondition if want is systemd and that does
// not answer, and errdefs.ErrInvalidArgument for other values.
func Detect(want string) (Driver, error) {
	switch want {
	case "auto", "":
		if systemdAnswers() == nil {
			return Systemd, nil
		}
		return Cgroupfs, nil
	case string(Cgroupfs):
		return Cgroupfs, nil
	case string(Systemd):
		if err := systemdAnswers(); err != nil {
			return "", fmt.Errorf("%w: %w", errdefs.ErrFailedPrecondition.WithMessage(
				"cgroup driver systemd: systemd does not respond on this node; use cgroupfs or auto"), err)
		}
		return Systemd, nil
	default:
		return "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
			"cgroup driver %.60q: it must be auto, systemd or cgroupfs", want))
	}
}

func systemdAnswers() error {
	if !util.IsRunningSystemd() {
		return fmt.Errorf("PID 1 is not systemd (/run/systemd/system does not exist)")
	}
	ctx, cancel := context.WithTimeout(context.Background(), systemdTimeout)
	defer cancel()
	conn, err := dbus.NewWithContext(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.GetManagerProperty("Version")
	return err
}
