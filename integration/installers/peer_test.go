// Package installers tests berth against what installers of runtimes do on a
// node: the files they write, and the ways in which they ask a CRI daemon to
// read them.
package installers

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peerByMessage finds out which process serves a socket in the way of NVIDIA's
// toolkit: it asks the kernel to pass credentials, sends nothing, and takes the
// process that the server's first bytes are from. If late is set it asks only
// once these bytes are there.
func peerByMessage(ctx context.Context, socket string, late bool) (int, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	peer, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("%T is no unix socket", conn)
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

// awaitBytes waits until the server has said something.
func awaitBytes(fd int) error {
	const patience = 30_000 // ms
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, patience)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errors.New("the server says nothing")
		default:
			return nil
		}
	}
}
