package streaming

import (
	"net"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// slowly is a server whose clients have little time for their headers, and a way to it.
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

// Clients that send a byte of a header now and then are cut off. They were told goodbye
// once, and then had a minute more, as a session has to read its last output.
func TestSlowHeaders(t *testing.T) {
	s, dial := slowly(t, 100*time.Millisecond)
	for range 20 {
		conn := dial()
		go func() {
			for _, err := conn.Write([]byte("GET / HTTP/1.1\r\nX: ")); err == nil; _, err = conn.Write([]byte("x")) {
				time.Sleep(20 * time.Millisecond) // over TCP; less than what would end it otherwise
			}
		}()
	}
	test.Eventually(t, "all are there", func() bool { return s.clients.count() > 0 })
	begun := time.Now()
	test.Eventually(t, "none is left", func() bool { return s.clients.count() == 0 })
	if took := time.Since(begun); took > lingering/2 {
		t.Errorf("it took %v", took)
	}
}

// Connections without a request are bounded, and the oldest goes first.
func TestConnectionsWithoutARequest(t *testing.T) {
	s, dial := slowly(t, time.Minute)
	oldest := dial()
	for range maxWaiting + 20 {
		dial()
	}
	test.Eventually(t, "they are bounded", func() bool { return s.clients.count() <= maxWaiting })
	test.Must(t, oldest.SetReadDeadline(time.Now().Add(30*time.Second)))
	if n, err := oldest.Read(make([]byte, 1)); err == nil || n > 0 {
		t.Errorf("the oldest reads %d bytes, %v", n, err)
	} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // it is not wrapped
		t.Error("the oldest is still there")
	}
}
