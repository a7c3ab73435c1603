package daemon

import (
	"context"
	"errors"
	"net"

	"github.com/containerd/log"
	"github.com/coreos/go-systemd/v22/daemon"
)

const (
	ready    = daemon.SdNotifyReady
	stopping = daemon.SdNotifyStopping
	// reloading needs MONOTONIC_USEC beside it.
	reloading = daemon.SdNotifyReloading
)

// notifier tells systemd about the daemon's state (sd_notify(3)). It has the
// socket's path by value, and not by environment as go-systemd's, because the
// variable must be gone before any child starts: OCI runtimes that see it take
// the socket for the container's.
type notifier struct {
	socket string
}

// send does its best: a manager that does not listen is no reason to end.
func (n notifier) send(ctx context.Context, state string) {
	if n.socket == "" {
		return
	}
	if err := n.write(state); err != nil {
		log.G(ctx).WithError(err).Warn("Failed to notify the service manager")
	}
}

func (n notifier) write(state string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return errors.Join(err, conn.Close())
}
