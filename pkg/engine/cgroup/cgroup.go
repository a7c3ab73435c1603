// Package cgroup knows where a container's cgroup is, what it uses, and how to
// clean up after it.
//
// The runtime makes cgroups and writes limits; the kubelet owns those of pods.
// This package reads, and removes leaves. Statistics are read file by file, and
// only the files that the CRI has fields for: the general libraries read some
// thirty per container, which with forty pods costs what a list of statistics
// may cost ten times.
//
// Where the hierarchies are mounted is read once in the life of the process.
package cgroup

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/dbus"
	"github.com/coreos/go-systemd/v22/util"
)

// Driver says who makes cgroups: the runtime itself, or systemd on its behalf.
type Driver string

const (
	// Cgroupfs has the runtime make directories.
	Cgroupfs Driver = "cgroupfs"
	// Systemd has the runtime ask systemd for a scope.
	Systemd Driver = "systemd"
)

// systemdTimeout bounds the question whether systemd answers.
const systemdTimeout = 2 * time.Second

// Detect returns the driver that want names: "cgroupfs", "systemd", or "auto"
// (also ""), which is systemd when that is pid 1 and answers on D-Bus, as the
// kubelet's documentation advises, else cgroupfs. Asking for systemd where it
// does not answer is errdefs.ErrFailedPrecondition, and any other word is
// errdefs.ErrInvalidArgument.
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
