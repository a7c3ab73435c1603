package session

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// joined returns the two ends of one TCP connection.
func joined(t *testing.T) (here, there *net.TCPConn) {
	t.Helper()
	l := test.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = l.Close() }()
	a := test.Value(net.Dial("tcp", l.Addr().String()))(t)
	b := test.Value(l.Accept())(t)
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// halfClosing is a session's stream: Close ends only the direction that is written.
type halfClosing struct{ *net.TCPConn }

func (s halfClosing) Close() error { return s.CloseWrite() }

// spliced connects a client with a server in a pod.
func spliced(ctx context.Context, t *testing.T) (client, server *net.TCPConn, result <-chan error) {
	return splicedFor(ctx, t, podGrace)
}

func splicedFor(ctx context.Context, t *testing.T, grace time.Duration) (client, server *net.TCPConn, result <-chan error) {
	t.Helper()
	client, stream := joined(t)
	pod, server := joined(t)
	done := make(chan error, 1)
	go func() {
		done <- splice(ctx, &podConn{halfCloser: pod, grace: grace}, halfClosing{stream})
	}()
	return client, server, done
}

func say(t *testing.T, c *net.TCPConn, text string) {
	t.Helper()
	test.Must(t, test.Err(io.WriteString(c, text)))
}

func hear(t *testing.T, c *net.TCPConn, want string) {
	t.Helper()
	test.Must(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	b := make([]byte, len(want))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
		t.Fatalf("read %q, %v; want %q", b, err, want)
	}
}

func hearEnd(t *testing.T, c *net.TCPConn) {
	t.Helper()
	test.Must(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil && !errors.Is(err, unix.ECONNRESET) {
		t.Fatalf("read %q, %v; want the end", b, err)
	}
}

func TestEachDirectionEndsByItself(t *testing.T) {
	client, server, result := spliced(t.Context(), t)
	say(t, client, "question")
	hear(t, server, "question")
	test.Must(t, client.CloseWrite())
	hearEnd(t, server)
	say(t, server, "answer")
	hear(t, client, "answer")
	test.Must(t, server.Close())
	hearEnd(t, client)
	test.Check(t, <-result)
}

// If the server does not react to the end of the client's direction, the connection ends
// after the grace period.
func TestASilentServerEndsWithItsClient(t *testing.T) {
	client, server, result := splicedFor(t.Context(), t, 500*time.Millisecond)
	say(t, client, "question")
	hear(t, server, "question")
	test.Must(t, client.CloseWrite())
	hearEnd(t, server)
	hearEnd(t, client)
	if err := <-result; err != nil {
		t.Errorf("splice returned %v although the client has left", err)
	}
}

func TestTheServerIsToldThatTheClientIsGone(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	client, server, result := spliced(ctx, t)
	say(t, client, "last words")
	leave()
	hear(t, server, "last words")
	hearEnd(t, server)
	if err := <-result; err != nil {
		t.Errorf("splice returned %v although the client has left", err)
	}
}

// A reset by the pod ends only its connection. It is not reported as an error, because clients
// close the whole session at the first error of a stream.
func TestAResetIsTheEndOfItsConnection(t *testing.T) {
	client, server, result := spliced(t.Context(), t)
	say(t, client, "question")
	hear(t, server, "question")
	test.Must(t, server.SetLinger(0))
	test.Must(t, server.Close())
	hearEnd(t, client)
	test.Must(t, client.Close())
	if err := <-result; err != nil {
		t.Errorf("splice returned %v for a reset", err)
	}
}

// loopback returns the ways to a pod that has this network namespace.
func loopback(netns string) []way {
	return waysTo(false, netns, []string{"10.0.0.1"})
}

func TestDialPod(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l := test.Value(net.Listen("tcp", address))(t)
		port := l.Addr().(*net.TCPAddr).Port
		conn, err := dialPod(t.Context(), loopback(""), port)
		test.Mustf(t, err, "%s", address)
		test.Check(t, errors.Join(conn.Close(), l.Close()))
		var refused *refusedError
		if _, err := dialPod(t.Context(), loopback(""), port); !errors.As(err, &refused) || !strings.Contains(err.Error(), "::1") {
			t.Errorf("dial without a listener: %v", err)
		}
	}
	test.Fails(t, test.Err(dialPod(t.Context(), loopback("/no/such/namespace"), 80)), "dialPod succeeded in a missing namespace")
}

func TestWaysToAPod(t *testing.T) {
	inside := []way{{"/ns", "127.0.0.1"}, {"/ns", "::1"}}
	ips := []string{"10.0.0.1", "fd00::1"}
	for name, c := range map[string]struct {
		machine bool
		more    []way
	}{
		"listens in its namespace": {false, nil},
		"a machine":                {true, []way{{"", "10.0.0.1"}, {"", "fd00::1"}}},
	} {
		got := waysTo(c.machine, "/ns", ips)
		test.EqualLists(t, name, got, append(slices.Clone(inside), c.more...))
	}
}
