// Package streaming serves exec, attach and port-forward over HTTP by k8s.io/cri-streaming: it
// creates the URLs that the CRI's calls return, and runs the sessions that clients open there.
//
// The access control is the URL itself: an unguessable token that works once, within a minute. The
// listener is meant for the loopback interface, and rejects web pages that reach it through a
// browser.
//
// A session's context ends when its client disconnects and when the server closes. cri-streaming
// does not ensure that, because it takes the connection over from the HTTP server.
package streaming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/berth-cri/berth/pkg/printable"
)

// Runtime runs sessions.
type Runtime = streaming.Runtime

const (
	headerTimeout = 30 * time.Second
	closeTimeout  = 5 * time.Second
)

// Config configures the server.
type Config struct {
	// Address is an IP address; Port 0 takes a free one.
	Address string
	Port    int
	// IdleTimeout ends a session without traffic; 0 is four hours.
	IdleTimeout time.Duration
	// MaxSessions limits the exec and the attach sessions, each; 0 is unlimited.
	MaxSessions int
}

// Server creates URLs (GetExec, GetAttach, GetPortForward) and serves them. It is safe for
// concurrent use.
type Server struct {
	streaming.Server
	http     *http.Server
	clients  *clients
	sessions *sessions
	close    func() error
}

// Serve listens and returns; sessions run until Close.
func Serve(c Config, rt Runtime) (*Server, error) { return serve(c, rt, headerTimeout) }

func serve(c Config, rt Runtime, headerTimeout time.Duration) (*Server, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(c.Address, strconv.Itoa(c.Port)))
	if err != nil {
		return nil, fmt.Errorf("listen for exec, attach and port-forward: %w", err)
	}
	clients, err := newClients(l)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := &Server{clients: clients, sessions: &sessions{Runtime: rt, clients: clients, limit: c.MaxSessions, now: map[string]int{}}}
	config := streaming.DefaultConfig
	config.Addr = l.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: config.Addr}
	if c.IdleTimeout > 0 {
		config.StreamIdleTimeout = c.IdleTimeout
	}
	if s.Server, err = streaming.NewServer(config, s.sessions); err != nil {
		return nil, errors.Join(err, l.Close(), clients.close())
	}
	s.http = &http.Server{
		Handler:           guard(s.Server),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       headerTimeout,
		ConnContext:       func(_ context.Context, c net.Conn) context.Context { return c.(*client).ctx },
	}
	s.close = sync.OnceValue(func() error {
		return errors.Join(s.http.Close(), s.clients.close(), s.sessions.end(closeTimeout))
	})
	go func() {
		if err := s.http.Serve(s.clients); !errors.Is(err, http.ErrServerClosed) {
			log.L.WithError(err).Error("Server of exec, attach and port-forward failed")
		}
	}()
	return s, nil
}

// Close disconnects every client and returns when their sessions have ended, or after a few
// seconds. It may be called repeatedly.
func (s *Server) Close() error { return s.close() }

// sessions counts running sessions, and gives port-forwards the context of their client.
type sessions struct {
	Runtime
	clients *clients
	limit   int // of each kind; 0 is unlimited

	mu      sync.Mutex
	now     map[string]int // by kind
	ended   bool           // guarded by mu
	running sync.WaitGroup // grows only under mu while ended is false
}

// Kinds of limited sessions, as users see them.
const (
	execKind   = "exec"
	attachKind = "attach"
)

// begin counts a session until end is called. The empty kind is unlimited.
func (s *sessions) begin(kind string) (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil, errors.New("the daemon is stopping")
	}
	if err := s.full(kind); err != nil {
		return nil, err
	}
	s.now[kind]++
	s.running.Add(1)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.now[kind]--
		s.running.Done()
	}, nil
}

// full returns an error if no more sessions of a kind may begin; s.mu is held.
func (s *sessions) full(kind string) error {
	if kind == "" || s.limit == 0 || s.now[kind] < s.limit {
		return nil
	}
	return fmt.Errorf("this node has %d %s sessions, the most at a time; close some, or try again later: %w", s.limit, kind, errdefs.ErrResourceExhausted)
}

func (s *sessions) room(kind string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.full(kind)
}

// end rejects new sessions and waits for the running ones.
func (s *sessions) end(bound time.Duration) error {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.running.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-time.After(bound):
		return errors.New("sessions of exec, attach or port-forward did not close in time")
	}
}

func (s *sessions) Exec(ctx context.Context, name string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, sizes <-chan remotecommand.TerminalSize) error {
	end, err := s.begin(execKind)
	if err != nil {
		return err
	}
	defer end()
	t, err := parseTarget(name)
	if err != nil {
		return err
	}
	in, out, errOut = t.of(in, out, errOut)
	return shown(s.Runtime.Exec(ctx, t.id, cmd, in, out, errOut, tty, sizes))
}

func (s *sessions) Attach(ctx context.Context, name string, in io.Reader, out, errOut io.WriteCloser, tty bool, sizes <-chan remotecommand.TerminalSize) error {
	end, err := s.begin(attachKind)
	if err != nil {
		return err
	}
	defer end()
	t, err := parseTarget(name)
	if err != nil {
		return err
	}
	in, out, errOut = t.of(in, out, errOut)
	return shown(s.Runtime.Attach(ctx, t.id, in, out, errOut, tty, sizes))
}

// PortForward replaces cri-streaming's context, which never ends.
func (s *sessions) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	end, err := s.begin("")
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel, stream := s.clients.follow(ctx, stream)
	defer cancel()
	return shown(s.Runtime.PortForward(ctx, id, port, stream))
}

// shownError has a printable text: a runtime's output goes to the terminal of the session's user.
type shownError struct {
	text string
	error
}

func (e shownError) Error() string { return e.text }

func (e shownError) Unwrap() error { return e.error }

// shown makes an error printable for the client. An error with an exit code is kept, because
// cri-streaming looks for the code in the error itself.
func shown(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[utilexec.ExitError](err); ok {
		return err
	}
	if text := printable.Line(printable.Error(err)); text != err.Error() {
		return shownError{text, err}
	}
	return err
}
