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

// A kubelet closes both its connections as soon as either ends. What its client had not
// read yet was lost if the client then sent anything: a ping, or the end of its input.
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
				t.Errorf("%d of %d bytes, %v", out.got, size, err)
			}
		})
	}
}

// lateReader reads nothing before the command has ended.
type lateReader struct {
	from <-chan struct{}
	once sync.Once
	got  int
}

func (r *lateReader) Write(b []byte) (int, error) {
	r.once.Do(func() {
		<-r.from
		time.Sleep(100 * time.Millisecond) // in which a server could hang up
	})
	r.got += len(b)
	return len(b), nil
}

// typing is an input on which something comes again and again once the command has
// ended.
type typing struct{ from <-chan struct{} }

func (i *typing) Read(b []byte) (int, error) {
	<-i.from
	time.Sleep(10 * time.Millisecond)
	return copy(b, "x"), nil
}

// An answer that is no session may end with the connection.
func TestTheServerHangsUpOnARefusedHandshake(t *testing.T) {
	s := serve(t, streaming.Config{}, saysHello(t))
	conn, u := dial(t, execURL(t, s, streams{out: true}))
	say(t, conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
		"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Protocol: v9.channel.k8s.io\r\n\r\n", u.Path, u.Host)
	if answer := hangsUp(t, conn); !strings.HasPrefix(answer, "HTTP/1.1 4") {
		t.Errorf("answered %q", answer)
	}
}

// hangsUp returns what the server has sent when it hangs up.
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
	e := soon(t, ended, "the server hangs up")
	if e.err != nil {
		t.Error(e.err)
	}
	return string(e.said)
}
