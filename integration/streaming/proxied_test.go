package streaming

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/berth-cri/berth/pkg/engine/streaming"
)

func saysHello(t *testing.T) program {
	return program{run: func(_ context.Context, s session) error {
		say(t, s.out, "hello")
		return nil
	}}
}

// A request of a web page is refused, and the URL stays valid.
func TestWebPagesAreNotServed(t *testing.T) {
	s := serve(t, streaming.Config{}, saysHello(t))
	address := execURL(t, s, streams{out: true})
	for name, headers := range map[string]string{
		"another host":   "Host: evil.example:1\r\n",
		"another origin": "Host: HERE\r\nOrigin: https://evil.example\r\n",
	} {
		conn, u := dial(t, address)
		say(t, conn, "GET %s HTTP/1.1\r\n%sConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"+
			"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n",
			u.Path, strings.ReplaceAll(headers, "HERE", u.Host))
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		must(t, err)
		_ = r.Body.Close() // only the status counts
		if r.StatusCode != http.StatusForbidden {
			t.Errorf("%s: %s, want 403", name, r.Status)
		}
	}
	var out strings.Builder
	if err := open(t, clients["SPDY"], address, remotecommand.StreamOptions{Stdout: &out}); err != nil || out.String() != "hello" {
		t.Errorf("the client of the URL received %q, %v", out.String(), err)
	}
}

type responder struct{ t *testing.T }

func (r responder) Error(w http.ResponseWriter, _ *http.Request, err error) {
	r.t.Error(err)
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// A kubelet passes on the headers of clients: Host is the name of the API server, and Origin that of
// a web console.
func TestClientsBehindAKubelet(t *testing.T) {
	s := serve(t, streaming.Config{}, saysHello(t))
	for protocol, client := range clients {
		to, err := url.Parse(execURL(t, s, streams{out: true}))
		if err != nil {
			t.Fatal(err)
		}
		pass := proxy.NewUpgradeAwareHandler(to, nil, false, true, responder{t})
		kubelet := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Host = "api.cluster.example:6443"
			r.Header.Set("Origin", "https://console.example")
			pass.ServeHTTP(w, r)
		}))
		var out strings.Builder
		err = open(t, client, kubelet.URL+"/exec", remotecommand.StreamOptions{Stdout: &out})
		kubelet.Close()
		if err != nil || out.String() != "hello" {
			t.Errorf("%s: received %q, %v", protocol, out.String(), err)
		}
	}
}

// Errors of a runtime are escaped, because they are printed on the client's terminal.
func TestErrorsOfSessionsPrint(t *testing.T) {
	s := serve(t, streaming.Config{}, program{run: func(context.Context, session) error {
		return errors.New("no program \x1b]0;owned\x07")
	}})
	for protocol, client := range clients {
		err := open(t, client, execURL(t, s, streams{out: true}), remotecommand.StreamOptions{Stdout: &strings.Builder{}})
		if err == nil || !strings.Contains(err.Error(), `no program \u001b]0;owned\u0007`) {
			t.Errorf("%s: the session returns %v", protocol, err)
		}
	}
}
