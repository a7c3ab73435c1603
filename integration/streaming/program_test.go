package streaming

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	server "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/berth-cri/berth/pkg/engine/streaming"
)

// program is a runtime whose sessions are functions.
type program struct {
	run     func(ctx context.Context, s session) error
	forward func(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error
}

type session struct {
	id       string
	cmd      []string
	in       io.Reader
	out, err io.WriteCloser
	tty      bool
	sizes    <-chan server.TerminalSize
}

func (p program) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, sizes <-chan server.TerminalSize) error {
	return p.run(ctx, session{id, cmd, in, out, errOut, tty, sizes})
}

func (p program) Attach(ctx context.Context, id string, in io.Reader, out, errOut io.WriteCloser, tty bool, sizes <-chan server.TerminalSize) error {
	return p.run(ctx, session{id, nil, in, out, errOut, tty, sizes})
}

func (p program) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	return p.forward(ctx, id, port, stream)
}

func serve(t *testing.T, c streaming.Config, p program) *streaming.Server {
	t.Helper()
	c.Address = "127.0.0.1"
	s := value(streaming.Serve(c, p))(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

type streams struct{ in, out, err, tty bool }

func execURL(t *testing.T, s *streaming.Server, of streams) string {
	t.Helper()
	r := value(s.GetExec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdin: of.in, Stdout: of.out, Stderr: of.err, Tty: of.tty}))(t)
	return r.GetUrl()
}

// dialect returns a client of one protocol for a URL.
type dialect func(address string) (remotecommand.Executor, error)

var clients = map[string]dialect{
	"SPDY": func(address string) (remotecommand.Executor, error) {
		u, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		return remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
	},
	"WebSocket": func(address string) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, address, "v4.channel.k8s.io")
	},
}

// open runs a session to its end.
func open(t *testing.T, client dialect, address string, options remotecommand.StreamOptions) error {
	t.Helper()
	e := value(client(address))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return e.StreamWithContext(ctx, options)
}

// dial opens the connection of a session without a client library, so that a test can break the
// protocol.
func dial(t *testing.T, address string) (*net.TCPConn, *url.URL) {
	t.Helper()
	u := value(url.Parse(address))(t)
	conn := value(net.Dial("tcp", u.Host))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn), u
}

// dialSPDY opens a connection with streams of the given types. headers are names and values of
// further headers of each stream.
func dialSPDY(t *testing.T, address, protocol string, types []string, headers ...string) (*net.TCPConn, httpstream.Connection, map[string]httpstream.Stream) {
	t.Helper()
	conn, u := dial(t, address)
	say(t, conn, "POST %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: %s\r\n\r\n", u.Path, u.Host, protocol)
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	must(t, err)
	_ = r.Body.Close() // the response has no body
	if r.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: %s", r.Status)
	}
	over, err := spdy.NewClientConnection(conn)
	if err != nil {
		t.Fatal(err)
	}
	opened := map[string]httpstream.Stream{}
	for _, of := range types {
		h := http.Header{}
		h.Set("streamType", of)
		for i := 0; i < len(headers); i += 2 {
			h.Set(headers[i], headers[i+1])
		}
		if opened[of], err = over.CreateStream(h); err != nil {
			t.Fatal(err)
		}
	}
	return conn, over, opened
}

func dialWebSocket(t *testing.T, address string) (*net.TCPConn, *websocket.Conn) {
	t.Helper()
	conn, u := dial(t, address)
	c := value(websocket.NewConfig("ws://"+u.Host+u.Path, "http://"+u.Host))(t)
	c.Protocol = []string{"v4.channel.k8s.io"}
	ws := value(websocket.NewClient(c, conn))(t)
	ws.PayloadType = websocket.BinaryFrame
	return conn, ws
}

func say(t *testing.T, w io.Writer, format string, values ...any) {
	t.Helper()
	if _, err := fmt.Fprintf(w, format, values...); err != nil {
		t.Errorf("write: %v", err)
	}
}

// soon ends the test unless the channel has a value, or is closed, within 20 seconds.
func soon[V any](t *testing.T, c <-chan V, what string) (v V) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("not within 20s: %s", what)
	}
	return v
}
