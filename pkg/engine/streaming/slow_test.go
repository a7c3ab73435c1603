package streaming

import (
	"net"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// slowly returns a server with this time limit for headers, and a function that connects to it.
func slowly(t *testing.T, headers time.Duration) (*Server, func() net.Conn) {
	t.Helper()
	s := test.Value(serve(Config{Address: "127.0.0.1"}, nil, headers))(t)
	t.Cleanup(func() { test.Check(t, s.Close()) })
	return s, func() net.Conn {
		t.Helper()
		conn := test.Value(net.Dial("tcp", s.clients.Addr().String()))(t)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

func (c *clients) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// Clients that send their headers too slowly are disconnected. They used to get the additional
// time (lingering) that a session's client has to read its last output.
func TestSlowHeaders(t *testing.T) {
	s, dial := slowly(t, 100*time.Millisecond)
	for range 20 {
		conn := dial()
		go func() {
			for _, err := conn.Write([]byte("GET / HTTP/1.1\r\nX: ")); err == nil; _, err = conn.Write([]byte("x")) {
				time.Sleep(20 * time.Millisecond) // in real time, because this is TCP; shorter than the limit for headers
			}
		}()
	}
	test.Eventually(t, "a client is connected", func() bool { return s.clients.count() > 0 })
	begun := time.Now()
	test.Eventually(t, "no client is connected", func() bool { return s.clients.count() == 0 })
	if took := time.Since(begun); took > lingering/2 {
		t.Errorf("cutting off the clients took %v", took)
	}
}

// The number of connections without a request is bounded, and the oldest is closed first.
func TestConnectionsWithoutARequest(t *testing.T) {
	s, dial := slowly(t, time.Minute)
	oldest := dial()
	for range maxWaiting + 20 {
		dial()
	}
	test.Eventually(t, "at most maxWaiting connections are open", func() bool { return s.clients.count() <= maxWaiting })
	test.Must(t, oldest.SetReadDeadline(time.Now().Add(30*time.Second)))
	if n, err := oldest.Read(make([]byte, 1)); err == nil || n > 0 {
		t.Errorf("the oldest reads %d bytes, %v", n, err)
	} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // it is not wrapped
		t.Error("the oldest is still there")
	}
}
