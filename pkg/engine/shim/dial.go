package shim

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// dialTimeout bounds a connection to a foreign shim.
const dialTimeout = 5 * time.Second

// socketOf tells where a shim listens by its address, as containerd reads it: with
// unix:// it is a file, bare it is an abstract socket. Abstract ones with the prefix, which
// shims answer that were built on containerd before 1.3.9, are told by the file. Pure but for isFile.
func socketOf(address string, isFile func(path string) bool) (path string, abstract bool) {
	path, named := strings.CutPrefix(address, "unix://")
	const abstractDir = "/containerd-shim/"
	switch {
	case strings.HasPrefix(path, "@"):
		return path[1:], true
	case named && !strings.HasPrefix(path, abstractDir), isFile(path):
		return path, false
	}
	return path, true
}

func isFile(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// dialForeign connects to a shim.
func dialForeign(address string) (net.Conn, error) {
	path, abstract := socketOf(address, isFile)
	if !abstract {
		return net.DialTimeout("unix", path, dialTimeout)
	}
	conn, err := net.DialTimeout("unix", "\x00"+path, dialTimeout)
	if err != nil {
		return nil, err
	}
	// Abstract sockets have no owner: any process of the host's network may have the name.
	if err := sameUser(conn.(*net.UnixConn)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func sameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var peer *unix.Ucred
	var perr error
	if err := raw.Control(func(fd uintptr) { peer, perr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if perr != nil {
		return perr
	}
	if own := os.Geteuid(); peer.Uid != uint32(own) {
		return fmt.Errorf("the socket belongs to user %d, not user %d", peer.Uid, own)
	}
	return nil
}
