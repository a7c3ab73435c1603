package conformance

import (
	"net"
	"net/url"
	"sync"
	"testing"
)

// wire is a proxy between a client and the streaming server. It passes everything on, as a kubelet
// does, but it can also stall or break the connection.
type wire struct {
	target   string
	listener net.Listener
	open     sync.WaitGroup

	mu    sync.Mutex
	flow  *sync.Cond
	still bool       // guarded by mu: what the server sends is not passed on
	ended bool       // guarded by mu
	conns []net.Conn // guarded by mu
}

// wireTo returns a wire to the server of a URL, and the URL that goes through it.
func wireTo(t *testing.T, target string) (*wire, string) {
	t.Helper()
	u, err := url.Parse(target)
	must(t, err, "URL of a session")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err, "listen for a client")
	w := &wire{target: u.Host, listener: l}
	w.flow = sync.NewCond(&w.mu)
	w.open.Add(1)
	go w.accept()
	t.Cleanup(func() {
		w.cut()
		w.open.Wait()
	})
	u.Host = l.Addr().String()
	return w, u.String()
}

func (w *wire) accept() {
	defer w.open.Done()
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.target)
		if err != nil {
			_ = client.Close()
			return
		}
		w.mu.Lock()
		w.conns = append(w.conns, client, server)
		w.mu.Unlock()
		w.open.Add(2)
		go w.pass(server, client, func() {})
		go w.pass(client, server, w.await)
	}
}

// pass copies one direction. If one connection ends, it closes both.
func (w *wire) pass(to, from net.Conn, gate func()) {
	defer w.open.Done()
	defer func() { _, _ = to.Close(), from.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		gate()
		if _, werr := to.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// await blocks while the wire is stalled.
func (w *wire) await() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.still && !w.ended {
		w.flow.Wait()
	}
}

// stall stops passing on what the server sends, as if the client did not read.
func (w *wire) stall() { w.set(true) }

// resume ends a stall.
func (w *wire) resume() { w.set(false) }

func (w *wire) set(still bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.still = still
	w.flow.Broadcast()
}

// cut resets the connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	w.flow.Broadcast()
	_ = w.listener.Close()
	for _, c := range w.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}
