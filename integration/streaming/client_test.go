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

// waiting is a program that runs until its context ends, and reads no input.
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

// leaving are the ways of a client to go, on the level of TCP.
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
			soon(t, begun, "the session has begun")
			leave(conn)
			soon(t, ended, "the session has ended")
		})
		t.Run("SPDY that has sent what nobody reads "+how, func(t *testing.T) {
			conn, _, opened := dialSPDY(t, execURL(t, s, streams{in: true, out: true}), "v4.channel.k8s.io", all)
			soon(t, begun, "the session has begun")
			// More than the SPDY library takes, less than the socket does.
			for range 70 {
				if _, err := io.WriteString(opened["stdin"], strings.Repeat("x", 512)); err != nil {
					t.Fatal(err)
				}
			}
			leave(conn)
			soon(t, ended, "the session has ended")
		})
		t.Run("WebSocket "+how, func(t *testing.T) {
			conn, _ := dialWebSocket(t, execURL(t, s, streams{in: true, out: true}))
			soon(t, begun, "the session has begun")
			leave(conn)
			soon(t, ended, "the session has ended")
		})
		t.Run("WebSocket that has sent what nobody reads "+how, func(t *testing.T) {
			conn, ws := dialWebSocket(t, execURL(t, s, streams{in: true, out: true}))
			soon(t, begun, "the session has begun")
			for range 8 {
				if _, err := ws.Write(append([]byte{0}, strings.Repeat("x", 2048)...)); err != nil {
					t.Fatal(err)
				}
			}
			leave(conn)
			soon(t, ended, "the session has ended")
		})
	}
	t.Run("SPDY says goodbye", func(t *testing.T) {
		_, over, _ := dialSPDY(t, execURL(t, s, streams{in: true, out: true}), "v4.channel.k8s.io", all)
		soon(t, begun, "the session has begun")
		must(t, over.Close())
		soon(t, ended, "the session has ended")
	})
	t.Run("WebSocket says goodbye", func(t *testing.T) {
		_, ws := dialWebSocket(t, execURL(t, s, streams{in: true, out: true}))
		soon(t, begun, "the session has begun")
		must(t, ws.WriteClose(1000))
		soon(t, ended, "the session has ended")
	})
}

// What a client has sent and nobody has read must not cost it what it is yet to
// read: TCP answers a close over unread data with a reset, and drops what it has to
// send.
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
	soon(t, ended, "the session has ended")
	time.Sleep(100 * time.Millisecond) // in which the server hangs up
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
		t.Errorf("%d of %d bytes, success=%v", got, size, success)
	}
}

// That the input has ended is no reason to end the session.
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
	soon(t, inputEnded, "the input has ended")
	close(finish)
	if b, err := io.ReadAll(opened["stdout"]); err != nil || string(b) != "late" {
		t.Errorf("stdout is %q, %v", b, err)
	}
	if err := soon(t, result, "the session has ended"); err != nil {
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

// A port-forward ends with its own client and with no other.
func TestAPortForwardEndsWithItsClient(t *testing.T) {
	p, begun, ended := waiting()
	s := serve(t, streaming.Config{}, p)
	for how, leave := range leaving {
		t.Run("SPDY "+how, func(t *testing.T) {
			first, second := dialForward(t, s), dialForward(t, s)
			soon(t, begun, "the first forward has begun")
			soon(t, begun, "the second forward has begun")
			leave(first)
			soon(t, ended, "the first forward has ended")
			select {
			case <-ended:
				t.Error("the second forward ended with the first one's client")
			case <-time.After(100 * time.Millisecond):
			}
			leave(second)
			soon(t, ended, "the second forward has ended")
		})
	}
}

// Over WebSocket the end is seen by who reads.
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
	if got := soon(t, begun, "the forward has begun"); got != "pod hello" {
		t.Errorf("the runtime got %q", got)
	}
	must(t, conn.Close())
	if err := soon(t, ended, "the forward has ended"); err == nil {
		t.Error("the forward's context has not ended")
	}
}

func TestIdleSessionsEnd(t *testing.T) {
	p, begun, ended := waiting()
	s := serve(t, streaming.Config{IdleTimeout: 300 * time.Millisecond}, p)
	dialSPDY(t, execURL(t, s, streams{in: true, out: true}), "v4.channel.k8s.io", []string{"error", "stdin", "stdout"})
	soon(t, begun, "the session over SPDY has begun")
	soon(t, ended, "the idle session over SPDY has ended")
	dialWebSocket(t, execURL(t, s, streams{in: true, out: true}))
	soon(t, begun, "the session over WebSocket has begun")
	soon(t, ended, "the idle session over WebSocket has ended")
	dialForward(t, s)
	soon(t, begun, "the forward has begun")
	soon(t, ended, "the idle forward has ended")
}

// Output alone keeps a session from being idle.
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
		if err := soon(t, result, "the sessions have ended"); err != nil {
			t.Errorf("a busy session was ended: %v", err)
		}
	}
}

// Close ends sessions and waits for what they have to clear up.
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
	soon(t, begun, "the first session has begun")
	soon(t, begun, "the second session has begun")
	must(t, s.Close())
	if len(cleared) != 2 {
		t.Errorf("%d of 2 sessions had ended when Close returned", len(cleared))
	}
	if err := open(t, clients["SPDY"], later, remotecommand.StreamOptions{Stdout: io.Discard}); err == nil {
		t.Error("a closed server has served a session")
	}
}

// must fails the test at once if a step of it failed.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// value returns what a step gave, and fails the test at once if it failed.
func value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}
