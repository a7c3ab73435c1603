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

// socketOf parses a shim's address like containerd. A path after unix:// is a file. A bare path, or
// one below unix:///containerd-shim/ (of shims built on containerd before 1.3.9), is an abstract
// socket unless isFile returns true. Pure but for isFile.
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
	// Abstract sockets have no owner: any process in the host's network namespace may listen.
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

// promptConn limits the time of a write. ttrpc writes calls one after the other and ignores their
// contexts meanwhile: one call that the peer does not read would block all later ones for ever.
type promptConn struct {
	net.Conn
	patience time.Duration
}

// Write closes the connection when it fails: the peer cannot parse what follows half a message.
func (c promptConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
		return n, fmt.Errorf("%w: %w", net.ErrClosed, err) // so that Lost is true
	}
	return n, nil
}

// lateAnswer is what the ttrpc library logs as an error when a response arrives after its caller
// gave up. The caller has returned its own error by then.
const lateAnswer = "ttrpc: received message on inactive stream"

// demoteLateAnswers logs late answers at debug level. The library has no logger per client, so this
// changes the process's logger.
var demoteLateAnswers = sync.OnceFunc(func() { log.L.Logger.AddHook(lateAnswers{}) })

type lateAnswers struct{}

func (lateAnswers) Levels() []logrus.Level { return []logrus.Level{log.ErrorLevel} }

func (lateAnswers) Fire(e *logrus.Entry) error {
	switch {
	case e.Message != lateAnswer:
	case e.Logger.IsLevelEnabled(log.DebugLevel):
		e.Level = log.DebugLevel
	default:
		e.Logger = discardLog
	}
	return nil
}

var discardLog = &logrus.Logger{Out: io.Discard, Formatter: &logrus.JSONFormatter{}, Hooks: logrus.LevelHooks{}}
