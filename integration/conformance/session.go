package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/patience"
)

// protocol is the protocol between a client and the streaming server.
type protocol string

const (
	spdy      protocol = "SPDY"
	websocket protocol = "WebSocket"
)

var protocols = []protocol{spdy, websocket}

// executor is the client for a session's URL that kubectl and the kubelet use. The server's
// WebSocket protocol is v4; kubectl's v5 ends at the kubelet.
func (p protocol) executor(address string) (remotecommand.Executor, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if p == websocket {
		return remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, "GET", address, "v4.channel.k8s.io")
	}
	return remotecommand.NewSPDYExecutor(&rest.Config{}, "POST", u)
}

// streams are the streams of a session.
type streams struct {
	stdin, tty         bool
	noStdout, noStderr bool
	// columns and rows are the terminal's size from the start, if it has one.
	columns, rows uint16
}

// session is an open exec or attach of a client.
type session struct {
	t              *testing.T
	n              *node
	stdin          *io.PipeWriter
	stdout, stderr transcript
	sizes          sizes
	wire           *wire
	cancel         context.CancelFunc
	done           chan struct{}
	err            error // set when done is closed
}

// sessionBound ends a session if the check itself did not.
var sessionBound = patience.Of(3 * time.Minute)

// execURL requests the URL of an exec.
func (c *container) execURL(t *testing.T, s streams, cmd ...string) string {
	t.Helper()
	r, err := c.Runtime.Exec(call(t), &runtimeapi.ExecRequest{
		ContainerId: c.ID, Cmd: cmd, Tty: s.tty, Stdin: s.stdin, Stdout: !s.noStdout, Stderr: s.hasStderr(),
	})
	must(t, err, "Exec "+inline(cmd))
	return r.GetUrl()
}

func (s streams) hasStderr() bool { return !s.noStderr && !s.tty }

// attachURL requests the URL of an attach.
func (c *container) attachURL(t *testing.T, s streams) string {
	t.Helper()
	r, err := c.Runtime.Attach(call(t), &runtimeapi.AttachRequest{
		ContainerId: c.ID, Tty: s.tty, Stdin: s.stdin, Stdout: !s.noStdout, Stderr: s.hasStderr(),
	})
	must(t, err, "Attach")
	return r.GetUrl()
}

// open begins a session with a command.
func (c *container) open(t *testing.T, p protocol, s streams, cmd ...string) *session {
	t.Helper()
	return c.session(t, p, s, c.execURL(t, s, cmd...))
}

// attach begins a session with the container's first process.
func (c *container) attach(t *testing.T, p protocol, s streams) *session {
	t.Helper()
	return c.session(t, p, s, c.attachURL(t, s))
}

func (n *node) session(t *testing.T, p protocol, s streams, address string) *session {
	t.Helper()
	o := &session{t: t, n: n, sizes: make(sizes, 4), done: make(chan struct{})}
	o.wire, address = wireTo(t, address)
	e, err := p.executor(address)
	must(t, err, "client of a session")
	ctx, cancel := context.WithTimeout(context.Background(), sessionBound)
	o.cancel = cancel
	options := remotecommand.StreamOptions{Tty: s.tty}
	var in *io.PipeReader
	if s.stdin {
		in, o.stdin = io.Pipe()
		options.Stdin = in
	}
	if !s.noStdout {
		options.Stdout = &o.stdout
	}
	if s.hasStderr() {
		options.Stderr = &o.stderr
	}
	if s.tty {
		options.TerminalSizeQueue = o.sizes
	}
	if s.columns > 0 {
		o.resize(s.columns, s.rows)
	}
	go func() {
		defer close(o.done)
		o.err = e.StreamWithContext(ctx, options)
		if in != nil {
			_ = in.CloseWithError(errors.New("the session has ended"))
		}
	}()
	t.Cleanup(func() {
		cancel()
		if o.stdin != nil {
			_ = o.stdin.Close()
		}
		close(o.sizes)
		o.wire.cut()
		<-o.done
	})
	return o
}

// wait waits for the end of the session and returns its error.
func (s *session) wait() error {
	s.t.Helper()
	return s.waitFor(time.Minute)
}

func (s *session) waitFor(d time.Duration) error {
	s.t.Helper()
	d = patience.Of(d)
	select {
	case <-s.done:
		return s.err
	case <-time.After(d):
		s.t.Fatalf("the session did not end in %v; stdout %s, stderr %s", d, clip(s.stdout.bytes()), clip(s.stderr.bytes()))
		return nil
	}
}

// exitCode waits for the session's command and returns its exit code; another error fails the
// check.
func (s *session) exitCode() int {
	s.t.Helper()
	err := s.wait()
	if err == nil {
		return 0
	}
	var code exec.CodeExitError
	if !errors.As(err, &code) {
		s.t.Fatalf("the session ended with %v; stdout %s, stderr %s", err, clip(s.stdout.bytes()), clip(s.stderr.bytes()))
	}
	return code.Code
}

// send writes to stdin.
func (s *session) send(text string) {
	s.t.Helper()
	_, err := io.WriteString(s.stdin, text)
	must(s.t, err, "write to a session's stdin")
}

// shows waits until stdout has the text.
func (s *session) shows(text string) {
	s.t.Helper()
	s.n.eventually(s.t, fmt.Sprintf("stdout has %q", text), func() bool {
		return strings.Contains(s.stdout.String(), text)
	})
}

// transcript is what arrived on a stream.
type transcript struct {
	mu   sync.Mutex
	text []byte // guarded by mu
}

func (o *transcript) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, b...)
	return len(b), nil
}

func (o *transcript) bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text[:len(o.text):len(o.text)]
}

func (o *transcript) String() string { return string(o.bytes()) }

// sizes are the sizes of a client's terminal, one after the other.
type sizes chan remotecommand.TerminalSize

// Next waits for the next size of the terminal, for the client library.
func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s
	if !ok {
		return nil
	}
	return &size
}

func (s *session) resize(columns, rows uint16) {
	s.sizes <- remotecommand.TerminalSize{Width: columns, Height: rows}
}
