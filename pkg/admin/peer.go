package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// caller is the process at the other end of the socket, as recorded by the kernel at connect.
type caller struct {
	credentials.CommonAuthInfo
	uid uint32
	pid int32
}

func (caller) AuthType() string { return "unix" }

func callerOf(ctx context.Context) (caller, bool) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}, false
	}
	c, ok := p.AuthInfo.(caller)
	return c, ok
}

// userOf returns the calling user, as in "uid 0".
func userOf(ctx context.Context) string {
	c, known := callerOf(ctx)
	if !known {
		return ""
	}
	return fmt.Sprintf("uid %d", c.uid)
}

// unixCredentials get the caller's identity from the kernel.
type unixCredentials struct{}

func (unixCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, err := peerOf(conn)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cannot read peer credentials: %w", err), conn.Close())
	}
	return conn, c, nil
}

func peerOf(conn net.Conn) (caller, error) {
	u, ok := conn.(*net.UnixConn)
	if !ok {
		return caller{}, errors.New("the connection is not a unix socket connection")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return caller{}, err
	}
	var cred *unix.Ucred
	var failure error
	err = raw.Control(func(fd uintptr) { cred, failure = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failure); err != nil {
		return caller{}, err
	}
	return caller{uid: cred.Uid, pid: cred.Pid}, nil
}

// ClientHandshake implements credentials.TransportCredentials; no client uses these credentials.
func (unixCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("these credentials are for servers only")
}

func (unixCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

func (c unixCredentials) Clone() credentials.TransportCredentials { return c }

func (unixCredentials) OverrideServerName(string) error { return nil }

var self = uint32(os.Geteuid()) //nolint:gosec // a user id is never negative on Linux
