package streaming

import (
	"context"
	"io"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-cri/berth/pkg/engine/streaming"
)

// A kubelet closes its connections to client and server as soon as one of them ends. If the client
// then sends anything, even a ping, the output that it has not read yet is lost. So the server
// must not close first.
func TestASlowClientBehindAKubeletGetsAllOutput(t *testing.T) {
	const size, piece = 2 << 20, 4 << 10
	for protocol, client := range clients {
		t.Run(protocol, func(t *testing.T) {
			ended := make(chan struct{})
			s := serve(t, streaming.Config{}, program{run: func(_ context.Context, s session) error {
				defer close(ended)
				for range size / piece {
					if _, err := io.WriteString(s.out, strings.Repeat("x", piece)); err != nil {
						return err
					}
				}
				return nil
			}})
			to, err := url.Parse(execURL(t, s, streams{in: true, out: true}))
			if err != nil {
				t.Fatal(err)
			}
			kubelet := httptest.NewServer(proxy.NewUpgradeAwareHandler(to, nil, false, true, responder{t}))
			defer kubelet.Close()
			out := &lateReader{from: ended}
			err = open(t, client, kubelet.URL+"/exec", remotecommand.StreamOptions{Stdin: &typing{from: ended}, Stdout: out})
			if err != nil || out.got != size {
				t.Errorf("received %d of %d bytes, %v", out.got, size, err)
			}
		})
	}
}

// lateReader blocks all output until the command has ended.
type lateReader struct {
	from <-chan struct{}
	once sync.Once
	got  int
}

func (r *lateReader) Write(b []byte) (int, error) {
	r.once.Do(func() {
		<-r.from
		time.Sleep(100 * time.Millisecond) // in which a server could close the connection
	})
	r.got += len(b)
	return len(b), nil
}

// typing is an input that has data all the time once the command has ended.
type typing struct{ from <-chan struct{} }

func (i *typing) Read(b []byte) (int, error) {
	<-i.from
	time.Sleep(10 * time.Millisecond)
	return copy(b, "x"), nil
}

// After it has refused a handshake, the server closes the connection.
func TestTheServerHangsUpOnARefusedHandshake(t *testing.T) {
	s := serve(t, streaming.Config{}, saysHello(t))
	conn, u := dial(t, execURL(t, s, streams{out: true}))
	say(t, conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Protocol: v9.channel.k8s.io\r\n\r\n", u.Path, u.Host)
	if answer := hangsUp(t, conn); !strings.HasPrefix(answer, "HTTP/1.1 4") {
		t.Errorf("the answer is %q, want a client error", answer)
	}
}

// hangsUp waits until the server closes the connection, and returns the data received until then.
func hangsUp(t *testing.T, conn io.Reader) string {
	t.Helper()
	type end struct {
		said []byte
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		said, err := io.ReadAll(conn)
		ended <- end{said, err}
	}()
	e := soon(t, ended, "close by the server")
	if e.err != nil {
		t.Error(e.err)
	}
	return string(e.said)
}
