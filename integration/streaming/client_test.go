package streaming

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/streaming"
)

// waiting is a program that reads no input, and whose sessions run until their context ends.
func waiting() (p program, begun, ended chan struct{}) {
	begun, ended = make(chan struct{}, 8), make(chan struct{}, 8)
	wait := func(ctx context.Context) error {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return ctx.Err()
	}
	return program{
		run:     func(ctx context.Context, _ session) error { return wait(ctx) },
		forward: func(ctx context.Context, _ string, _ int32, _ io.ReadWriteCloser) error { return wait(ctx) },
	}, begun, ended
}

// leaving are the ways in which a client can end its TCP connection.
var leaving = map[string]func(*net.TCPConn){
	"closes": func(c *net.TCPConn) { _ = c.Close() },
	"resets": func(c *net.TCPConn) { _, _ = c.SetLinger(0), c.Close() },
}

func TestASessionEndsWithItsClient(t *testing.T) {
	p, begun, ended := waiting()
	s := serve(t, streaming.Config{}, p)
	all := []string{"error", "stdin", "stdout"}
	for how, leave := range leaving {
		t.Run("SPDY "+how, func(t *testing.T) {
			conn, _, _ := dialSPDY(t, execURL(t, s, streams{in: true, out: true}), "v4.channel.k8s.io", all)
			soon(t, begun, "start of the session")
			leave(conn)
			soon(t, ended, "end of the session")
		})
		t.Run("SPDY with unread input "+how, func(t *testing.T) {
			conn, _, opened := dialSPDY(t, execURL(t, s, streams{in: true, out: true}), "v4.channel.k8s.io", all)
			soon(t, begun, "start of the session")
			// More than the SPDY library buffers, and less than the socket buffers.
			for range 70 {
				if _, err := io.WriteString(opened["stdin"], strings.Repeat("x", 512)); err != nil {
					t.Fatal(err)
				}
			}
			leave(conn)
			soon(t, ended, "end of the session")
		})
		t.Run("WebSocket "+how, func(t *testing.T) {
			conn, _ := dialWebSocket(t, execURL(t, s, streams{in: true, out: true}))
			soon(t, begun, "start of the session")
			leave(conn)
			soon(t, ended, "end of the session")
		})
		t.Run("WebSocket with unread input "+how, func(t *testing.T) {
			conn, ws := dialWebSocket(t, execURL(t, s, streams{in: true, out: true}))
			soon(t, begun, "start of the session")
			for range 8 {
				if _, err := ws.Write(append([]byte{0}, strings.Repeat("x", 2048)...)); err != nil {
					t.Fatal(err)
				}
			}
			leave(conn)
			soon(t, ended, "end of the session")
		})
	}
	t.Run("SPDY closes its connection", func(t *testing.T) {
		_, over, _ := dialSPDY(t, execURL(t, s, streams{in: true, out: true}), "v4.channel.k8s.io", all)
		soon(t, begun, "start of the session")
		must(t, over.Close())
		soon(t, ended, "end of the session")
	})
	t.Run("WebSocket sends a close frame", func(t *testing.T) {
		_, ws := dialWebSocket(t, execURL(t, s, streams{in: true, out: true}))
		soon(t, begun, "start of the session")
		must(t, ws.WriteClose(1000))
		soon(t, ended, "end of the session")
	})
}

// A client gets all output even if its own input was not read. TCP answers a close of a connection
// with unread input by a reset, which would drop the output that the client has not received yet.
func TestASessionEndsWithAllOfItsOutput(t *testing.T) {
	const size = 1 << 20
	ended := make(chan struct{})
	s := serve(t, streaming.Config{}, program{run: func(_ context.Context, s session) error {
		defer close(ended)
		_, err := io.WriteString(s.out, strings.Repeat("x", size))
		return err
	}})
	_, ws := dialWebSocket(t, execURL(t, s, streams{in: true, out: true}))
	for range 8 {
		if _, err := ws.Write(append([]byte{0}, strings.Repeat("x", 2048)...)); err != nil {
			t.Fatal(err)
		}
	}
	soon(t, ended, "end of the session")
	time.Sleep(100 * time.Millisecond) // in which the server may close the connection
	got, success := 0, false
	for {
		var message []byte
		if err := websocket.Message.Receive(ws, &message); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		switch message[0] {
		case 1:
			got += len(message) - 1
		case 3:
			success = strings.Contains(string(message), "Success")
		}
	}
	if got != size || !success {
		t.Errorf("received %d of %d bytes, success=%v", got, size, success)
	}
}

// A session continues after its input has ended.
func TestASessionOutlivesItsInput(t *testing.T) {
	inputEnded, finish := make(chan struct{}), make(chan struct{})
	result := make(chan error, 1)
	s := serve(t, streaming.Config{}, program{run: func(ctx context.Context, s session) error {
		_, _ = io.Copy(io.Discard, s.in)
		close(inputEnded)
		<-finish
		_, err := io.WriteString(s.out, "late")
		result <- ctx.Err()
		return err
	}})
	_, _, opened := dialSPDY(t, execURL(t, s, streams{in: true, out: true}), "v4.channel.k8s.io", []string{"error", "stdin", "stdout"})
	must(t, opened["stdin"].Close())
	soon(t, inputEnded, "end of the input")
	close(finish)
	if b, err := io.ReadAll(opened["stdout"]); err != nil || string(b) != "late" {
		t.Errorf("stdout is %q, %v", b, err)
	}
	if err := soon(t, result, "end of the session"); err != nil {
		t.Errorf("the session's context ended with its input: %v", err)
	}
}

func forwardURL(t *testing.T, s *streaming.Server, ports ...int32) string {
	t.Helper()
	r := value(s.GetPortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "pod", Port: ports}))(t)
	return r.GetUrl()
}

func dialForward(t *testing.T, s *streaming.Server) *net.TCPConn {
	t.Helper()
	conn, _, _ := dialSPDY(t, forwardURL(t, s), "portforward.k8s.io", []string{"error", "data"}, "port", "80", "requestID", "0")
	return conn
}

// A port-forward ends when its own client leaves, not when another one does.
func TestAPortForwardEndsWithItsClient(t *testing.T) {
	p, begun, ended := waiting()
	s := serve(t, streaming.Config{}, p)
	for how, leave := range leaving {
		t.Run("SPDY "+how, func(t *testing.T) {
			first, second := dialForward(t, s), dialForward(t, s)
			soon(t, begun, "start of the first forward")
			soon(t, begun, "start of the second forward")
			leave(first)
			soon(t, ended, "end of the first forward")
			select {
			case <-ended:
				t.Error("the second forward ended with the first one's client")
			case <-time.After(100 * time.Millisecond):
			}
			leave(second)
			soon(t, ended, "end of the second forward")
		})
	}
}

// Over WebSocket, the end of the client is noticed only while the forward reads.
func TestAWebSocketPortForwardEndsWithItsClient(t *testing.T) {
	begun, ended := make(chan string, 1), make(chan error, 1)
	s := serve(t, streaming.Config{}, program{forward: func(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
		line := make([]byte, 5)
		_, _ = io.ReadFull(stream, line)
		begun <- id + " " + string(line)
		go func() { _, _ = io.Copy(io.Discard, stream) }()
		<-ctx.Done()
		ended <- ctx.Err()
		return nil
	}})
	conn, ws := dialWebSocket(t, forwardURL(t, s, 80))
	if _, err := ws.Write([]byte("\x00hello")); err != nil {
		t.Fatal(err)
	}
	if got := soon(t, begun, "start of the forward"); got != "pod hello" {
		t.Errorf("the runtime received %q", got)
	}
	must(t, conn.Close())
	if err := soon(t, ended, "end of the forward"); err == nil {
		t.Error("the forward's context has not ended")
	}
}

func TestIdleSessionsEnd(t *testing.T) {
	p, begun, ended := waiting()
	s := serve(t, streaming.Config{IdleTimeout: 300 * time.Millisecond}, p)
	dialSPDY(t, execURL(t, s, streams{in: true, out: true}), "v4.channel.k8s.io", []string{"error", "stdin", "stdout"})
	soon(t, begun, "start of the session over SPDY")
	soon(t, ended, "end of the idle session over SPDY")
	dialWebSocket(t, execURL(t, s, streams{in: true, out: true}))
	soon(t, begun, "start of the session over WebSocket")
	soon(t, ended, "end of the idle session over WebSocket")
	dialForward(t, s)
	soon(t, begun, "start of the forward")
	soon(t, ended, "end of the idle forward")
}

// A session with output only is not idle.
func TestBusySessionsGoOn(t *testing.T) {
	const idle = time.Second
	result := make(chan error, 2)
	s := serve(t, streaming.Config{IdleTimeout: idle}, program{run: func(ctx context.Context, s session) error {
		pace := time.NewTicker(idle / 10)
		defer pace.Stop()
		for begun := time.Now(); time.Since(begun) < 3*idle && ctx.Err() == nil; <-pace.C {
			if _, err := io.WriteString(s.out, "tick"); err != nil {
				return err
			}
		}
		result <- ctx.Err()
		return nil
	}})
	dialSPDY(t, execURL(t, s, streams{out: true}), "v4.channel.k8s.io", []string{"error", "stdout"})
	dialWebSocket(t, execURL(t, s, streams{out: true}))
	for range 2 {
		if err := soon(t, result, "end of the sessions"); err != nil {
			t.Errorf("a busy session was ended: %v", err)
		}
	}
}

// Close ends all sessions and waits until they have cleaned up.
func TestCloseEndsSessions(t *testing.T) {
	begun, cleared := make(chan struct{}, 2), make(chan struct{}, 2)
	wait := func(ctx context.Context) error {
		begun <- struct{}{}
		<-ctx.Done()
		time.Sleep(200 * time.Millisecond)
		cleared <- struct{}{}
		return nil
	}
	s := serve(t, streaming.Config{}, program{
		run:     func(ctx context.Context, _ session) error { return wait(ctx) },
		forward: func(ctx context.Context, _ string, _ int32, _ io.ReadWriteCloser) error { return wait(ctx) },
	})
	dialWebSocket(t, execURL(t, s, streams{in: true, out: true}))
	dialForward(t, s)
	later := execURL(t, s, streams{out: true})
	soon(t, begun, "start of the first session")
	soon(t, begun, "start of the second session")
	must(t, s.Close())
	if len(cleared) != 2 {
		t.Errorf("%d of 2 sessions had ended when Close returned", len(cleared))
	}
	if err := open(t, clients["SPDY"], later, remotecommand.StreamOptions{Stdout: io.Discard}); err == nil {
		t.Error("a closed server has served a session")
	}
}

// must ends the test if a step failed.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// value returns the result of a step, and ends the test if the step failed.
func value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}
