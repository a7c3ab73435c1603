// Package installers tests berth with what installers of runtimes do on a node: they write
// files for a CRI daemon, and have the daemon read them again.
package installers

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peerByMessage finds the process that serves a socket as NVIDIA's toolkit does: it requests
// credentials by SO_PASSCRED, sends an empty message, and returns the sender of the server's first
// bytes. If late is set, it requests credentials only after these bytes have arrived.
func peerByMessage(ctx context.Context, socket string, late bool) (int, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	peer, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("%T is not a unix socket", conn)
	}
	raw, err := peer.SyscallConn()
	if err != nil {
		return 0, err
	}
	var passing error
	if err := raw.Control(func(fd uintptr) {
		if late {
			if passing = awaitBytes(int(fd)); passing != nil {
				return
			}
		}
		passing = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}); err != nil {
		return 0, err
	}
	if passing != nil {
		return 0, passing
	}
	if _, _, err := peer.WriteMsgUnix(nil, nil, nil); err != nil {
		return 0, err
	}
	control := make([]byte, 1024)
	_, n, _, _, err := peer.ReadMsgUnix(nil, control)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil {
		return 0, err
	}
	if len(messages) == 0 {
		return 0, errors.New("the server's bytes have no credentials")
	}
	credentials, err := unix.ParseUnixCredentials(&messages[0])
	if err != nil {
		return 0, err
	}
	return int(credentials.Pid), nil
}

// awaitBytes waits until the server has sent something.
func awaitBytes(fd int) error {
	const patience = 30_000 // ms
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, patience)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errors.New("the server sends nothing")
		default:
			return nil
		}
	}
}
