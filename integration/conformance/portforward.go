package conformance

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	xwebsocket "golang.org/x/net/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	spdyclient "k8s.io/client-go/transport/spdy"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
	spdystream "k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/berth-cri/berth/integration/patience"
)

// forwardURL requests the URL of a port-forward.
func (p *pod) forwardURL(t *testing.T, ports ...int32) string {
	t.Helper()
	r, err := p.Runtime.PortForward(call(t), &runtimeapi.PortForwardRequest{PodSandboxId: p.ID, Port: ports})
	must(t, err, "PortForward")
	return r.GetUrl()
}

// forwarder is a client with an open port-forward.
type forwarder struct {
	t     *testing.T
	conn  httpstream.Connection
	wire  *wire
	mu    sync.Mutex
	pairs int // guarded by mu
}

func spdyDialer(t *testing.T, address string) httpstream.Dialer {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err, "URL of a port-forward")
	upgrader, err := spdystream.NewRoundTripperWithConfig(spdystream.RoundTripperConfig{PingPeriod: 5 * time.Second})
	must(t, err, "client of a port-forward")
	return spdyclient.NewDialerForStreaming(spdyclient.NewUpgraderForStreaming(upgrader), &http.Client{Transport: upgrader}, http.MethodPost, u)
}

func (p *pod) forward(t *testing.T) *forwarder {
	t.Helper()
	w, address := wireTo(t, p.forwardURL(t))
	conn, _, err := spdyDialer(t, address).Dial(portforward.PortForwardProtocolV1Name)
	must(t, err, "open a port-forward")
	t.Cleanup(func() { _ = conn.Close() })
	return &forwarder{t: t, conn: conn, wire: w}
}

// dial opens a pair of streams to a port of the pod, as kubectl does for every connection.
func (f *forwarder) dial(port int) (data, failure httpstream.Stream, err error) {
	f.mu.Lock()
	f.pairs++
	id := strconv.Itoa(f.pairs)
	f.mu.Unlock()
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(port))
	headers.Set(corev1.PortForwardRequestIDHeader, id)
	if failure, err = f.conn.CreateStream(headers); err != nil {
		return nil, nil, err
	}
	_ = failure.Close() // for reading only
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err = f.conn.CreateStream(headers)
	return data, failure, err
}

// exchange sends a text to a port, closes its side, and returns the answer and the text of the
// error stream.
func (f *forwarder) exchange(port int, text string) (answer, failure string, err error) {
	data, failed, err := f.dial(port)
	if err != nil {
		return "", "", err
	}
	if _, err := io.WriteString(data, text); err != nil {
		return "", "", err
	}
	if err := data.Close(); err != nil {
		return "", "", err
	}
	b, err := io.ReadAll(data)
	if err != nil {
		return string(b), "", err
	}
	e, err := io.ReadAll(failed)
	return string(b), string(e), err
}

// serving starts a web server in the pod that answers with the text.
func (p *pod) serving(t *testing.T, address, text string) *container {
	t.Helper()
	c := p.start(t, sh("mkdir -p /tmp/www; echo "+text+" > /tmp/www/index.html; exec httpd -f -p "+address+" -h /tmp/www"))
	_, port, err := net.SplitHostPort(address)
	must(t, err, "address of a server")
	c.listens(t, port)
	return c
}

// listens waits until a process in the pod listens on the port.
func (c *container) listens(t *testing.T, port string) {
	t.Helper()
	c.eventually(t, "a process listens on "+port, func() bool {
		for _, l := range strings.Split(c.exec(t, "netstat", "-tln"), "\n") {
			if f := strings.Fields(l); len(f) > 3 && strings.HasSuffix(f[3], ":"+port) {
				return true
			}
		}
		return false
	})
}

const request = "GET /index.html HTTP/1.0\r\n\r\n"

func forwardServed(t *testing.T, n *node, address string) {
	t.Helper()
	p := n.pod(t)
	p.serving(t, address, "through")
	f := p.forward(t)
	_, port, _ := net.SplitHostPort(address)
	number, err := strconv.Atoi(port)
	must(t, err, "port of a server")
	for range 3 {
		answer, failure, err := f.exchange(number, request)
		must(t, err, "exchange")
		if !strings.HasSuffix(answer, "through\n") || failure != "" {
			t.Fatalf("answer %q, failure %q", answer, failure)
		}
	}
}

func forwardIPv4(t *testing.T, n *node) { forwardServed(t, n, "127.0.0.1:8080") }
func forwardIPv6(t *testing.T, n *node) { forwardServed(t, n, "[::1]:8081") }

// kubectl forwards a port of the pod as kubectl does, and returns the local port.
func (p *pod) kubectl(t *testing.T, port int32, errOut io.Writer) uint16 {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready := make(chan struct{})
	pf, err := portforward.NewOnAddressesForStreamingWithContext(ctx, spdyDialer(t, p.forwardURL(t, port)), []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, ready, io.Discard, errOut)
	must(t, err, "kubectl's port-forward")
	ended := make(chan error, 1)
	go func() { ended <- pf.ForwardPorts() }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended, "the end of kubectl's port-forward")
	})
	select {
	case <-ready:
	case <-time.After(patience.Of(30 * time.Second)):
		t.Fatal("port-forward is not ready")
	}
	ports, err := pf.GetPorts()
	must(t, err, "ports")
	return ports[0].Local
}

func forwardKubectl(t *testing.T, n *node) {
	p := n.pod(t)
	p.serving(t, "0.0.0.0:8080", "kubectl")
	var errOut transcript
	r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/index.html", p.kubectl(t, 8080, &errOut)))
	must(t, err, "GET through the port-forward")
	defer func() { _ = r.Body.Close() }()
	if body, err := io.ReadAll(r.Body); err != nil || string(body) != "kubectl\n" {
		t.Errorf("body %q, %v, %s", body, err, errOut.String())
	}
}

// forwardResets has every third client of a forwarded port send a byte that the server does not
// read, so that the connection ends with a reset. Later clients must be served.
func forwardResets(t *testing.T, n *node) {
	const connections, atOnce, later = 90, 8, 10
	p := n.pod(t)
	p.start(t, sh("exec nc -ll -p 8000 -e echo hi")).listens(t, "8000")
	var errOut transcript
	address := fmt.Sprintf("127.0.0.1:%d", p.kubectl(t, 8000, &errOut))
	connect := func(unread string) string {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = conn.Close() }()
		if unread != "" {
			_, _ = io.WriteString(conn, unread)
			_ = conn.(*net.TCPConn).SetLinger(0)
			return ""
		}
		_ = conn.SetDeadline(time.Now().Add(patience.Of(time.Minute)))
		got, _ := io.ReadAll(conn)
		return string(got)
	}
	slots := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i := range connections {
		slots <- struct{}{}
		all.Go(func() {
			connect(strings.Repeat("x", i%3/2))
			<-slots
		})
	}
	all.Wait()
	for i := range later {
		// This server also resets a few other connections, even without a port-forward.
		p.eventually(t, fmt.Sprintf("connection %d is served: %s", i, errOut.String()), func() bool { return connect("") == "hi\n" })
	}
}

// forwardWebSocket speaks the runtime's WebSocket protocol: two channels for each
// port, each beginning with the port's number.
func forwardWebSocket(t *testing.T, n *node) {
	p := n.pod(t)
	p.serving(t, "127.0.0.1:8080", "websocket")
	address := p.forwardURL(t, 8080, 8082)
	ws, err := xwebsocket.Dial("ws"+strings.TrimPrefix(address, "http"), "v4.channel.k8s.io", "http://localhost")
	must(t, err, "open a port-forward")
	defer func() { _ = ws.Close() }()
	ws.PayloadType = xwebsocket.BinaryFrame
	_, err = ws.Write(append([]byte{0}, request...))
	must(t, err, "send")
	var got [4]string
	must(t, ws.SetReadDeadline(time.Now().Add(patience.Of(30*time.Second))), "deadline")
	for !strings.HasSuffix(got[0], "websocket\n") || len(got[3]) <= 2 {
		var frame []byte
		if err := xwebsocket.Message.Receive(ws, &frame); err != nil {
			t.Fatalf("%v after %q", err, got)
		}
		got[frame[0]] += string(frame[1:])
	}
	for channel, port := range []string{"\x90\x1f", "\x90\x1f", "\x92\x1f", "\x92\x1f"} {
		if !strings.HasPrefix(got[channel], port) {
			t.Errorf("channel %d begins with %q, want %q", channel, got[channel], port)
		}
	}
	if got[1] != "\x90\x1f" || !strings.Contains(got[3], "8082") {
		t.Errorf("errors of the port with a server %q, without %q", got[1], got[3])
	}
}

func forwardRefused(t *testing.T, n *node) {
	p := n.pod(t)
	p.serving(t, "127.0.0.1:8080", "through")
	f := p.forward(t)
	for range 2 {
		answer, failure, err := f.exchange(8083, request)
		must(t, err, "exchange with a port without a server")
		if answer != "" || !strings.Contains(failure, "8083") || !strings.Contains(failure, "refused") {
			t.Errorf("answer %q, failure %q", answer, failure)
		}
		answer, failure, err = f.exchange(8080, request)
		must(t, err, "the next exchange")
		if !strings.HasSuffix(answer, "through\n") || failure != "" {
			t.Fatalf("the next: answer %q, failure %q", answer, failure)
		}
	}
}

func forwardHostNetwork(t *testing.T, n *node) {
	p := n.pod(t, hostNetwork)
	port := freePort(t)
	p.serving(t, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), "host")
	answer, failure, err := p.forward(t).exchange(port, request)
	must(t, err, "exchange")
	if !strings.HasSuffix(answer, "host\n") || failure != "" {
		t.Errorf("answer %q, failure %q", answer, failure)
	}
}

// listening starts a server in the pod that runs a script for every connection.
func (p *pod) listening(t *testing.T, port, script string) *container {
	t.Helper()
	c := p.start(t, sh(`printf '#!/bin/sh\n`+script+`\n' > /tmp/serve; chmod +x /tmp/serve; exec nc -ll -p `+port+` -e /tmp/serve`))
	c.listens(t, port)
	return c
}

func forwardHalfClose(t *testing.T, n *node) {
	p := n.pod(t)
	p.listening(t, "9000", "cat >/tmp/all; sleep 3; wc -c </tmp/all")
	answer, failure, err := p.forward(t).exchange(9000, strings.Repeat("x", 100_000))
	must(t, err, "exchange")
	if strings.TrimSpace(answer) != "100000" || failure != "" {
		t.Errorf("answer %q, failure %q", answer, failure)
	}
}

// forwardMany opens its connections one after the other, because the server's backlog is short, and
// then uses all of them at once.
func forwardMany(t *testing.T, n *node) {
	p := n.pod(t)
	p.listening(t, "9000", "exec cat")
	forwarders := []*forwarder{p.forward(t), p.forward(t)}
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range 60 {
		data, failure, err := forwarders[i%2].dial(9000)
		must(t, err, "dial")
		hello := make([]byte, 5)
		_, err = io.WriteString(data, "hello")
		must(t, err, "send")
		_, err = io.ReadFull(data, hello)
		must(t, err, "receive")
		wg.Go(func() {
			<-begin
			text := strings.Repeat(strconv.Itoa(i)+" ", 1_000)
			go func() {
				_, _ = io.WriteString(data, text)
				_ = data.Close()
			}()
			answer, err := io.ReadAll(data)
			why, failed := io.ReadAll(failure)
			if err != nil || failed != nil || string(hello) != "hello" || string(answer) != text || len(why) > 0 {
				t.Errorf("connection %d: %d of %d bytes, failure %q, %v, %v", i, len(answer), len(text), why, err, failed)
			}
		})
	}
	close(begin)
	wg.Wait()
}

func forwardBulk(t *testing.T, n *node) {
	p := n.pod(t)
	p.listening(t, "9000", "exec cat")
	text := string(numbers(1_000_000))
	data, failure, err := p.forward(t).dial(9000)
	must(t, err, "dial")
	go func() {
		_, _ = io.WriteString(data, text)
		_ = data.Close()
	}()
	answer, err := io.ReadAll(data)
	must(t, err, "receive")
	why, err := io.ReadAll(failure)
	must(t, err, "receive what went wrong")
	if string(answer) != text || len(why) > 0 {
		t.Errorf("%d of %d bytes, failure %q", len(answer), len(text), why)
	}
}

// forwardClientGone has a server that never reads from its connection.
func forwardClientGone(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.listening(t, "9001", "exec sleep 4340")
	established := func() int {
		return strings.Count(c.exec(t, "netstat", "-tn"), "ESTABLISHED")
	}
	for how, leave := range map[string]func(*forwarder){
		"it closes":    func(f *forwarder) { _ = f.conn.Close() },
		"it is killed": func(f *forwarder) { f.wire.cut() },
	} {
		t.Run(how, func(t *testing.T) {
			f := p.forward(t)
			for range 3 {
				data, _, err := f.dial(9001)
				must(t, err, "dial")
				_, err = io.WriteString(data, "hello")
				must(t, err, "send")
			}
			n.eventually(t, "the connections are there", func() bool { return established() > 0 })
			leave(f)
			n.eventually(t, "the connections are gone", func() bool { return established() == 0 })
		})
	}
}
