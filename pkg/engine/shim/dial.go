package shim

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

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

// promptConn is a connection to a process that must read what it is sent. ttrpc
// writes one call after the other and heeds no context meanwhile: one that nobody
// reads would hold up all that follow, for ever.
type promptConn struct {
	net.Conn
	patience time.Duration
}

// Write ends the connection when it fails: what follows half a message makes no
// sense to the other side.
func (c promptConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
		return n, fmt.Errorf("%w: %w", net.ErrClosed, err) // which makes it Lost
	}
	return n, nil
}

// lateAnswer is what the ttrpc library logs as an error when an answer comes that
// nobody waits for any more. Who called has had an error of its own by then.
const lateAnswer = "ttrpc: received message on inactive stream"

// quietLibrary makes late answers a matter of debugging. The library gives its
// clients no logger of their own, so this is said to the process's.
var quietLibrary = sync.OnceFunc(func() { log.L.Logger.AddHook(lateAnswers{}) })

type lateAnswers struct{}

func (lateAnswers) Levels() []logrus.Level { return []logrus.Level{log.ErrorLevel} }

func (lateAnswers) Fire(e *logrus.Entry) error {
	switch {
	case e.Message != lateAnswer:
	case e.Logger.IsLevelEnabled(log.DebugLevel):
		e.Level = log.DebugLevel
	default:
		e.Logger = nowhere
	}
	return nil
}

var nowhere = &logrus.Logger{Out: io.Discard, Formatter: &logrus.JSONFormatter{}, Hooks: logrus.LevelHooks{}}
