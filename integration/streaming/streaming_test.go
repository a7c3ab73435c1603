package streaming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	utilexec "k8s.io/utils/exec"

	"github.com/berth-cri/berth/pkg/engine/streaming"
)

// The runtime gets exactly the requested streams, in every combination and over both protocols, and
// their data arrive.
func TestStreamsAreThoseThatWereAskedFor(t *testing.T) {
	got := make(chan session, 1)
	s := serve(t, streaming.Config{}, program{run: func(_ context.Context, s session) error {
		got <- s
		if s.out != nil {
			say(t, s.out, "out of %s", s.id)
		}
		if s.err != nil {
			say(t, s.err, "err of %s", s.id)
		}
		if s.in != nil {
			line := make([]byte, 5)
			if _, err := io.ReadFull(s.in, line); err != nil || string(line) != "typed" {
				return fmt.Errorf("stdin is %q: %w", line, err)
			}
		}
		return utilexec.CodeExitError{Err: errors.New("exited"), Code: 3}
	}})
	for protocol, client := range clients {
		for bits := 1; bits < 8; bits++ {
			in, out, errOut := bits&1 != 0, bits&2 != 0, bits&4 != 0
			t.Run(fmt.Sprintf("%s in=%v out=%v err=%v", protocol, in, out, errOut), func(t *testing.T) {
				exec := value(s.GetExec(&runtimeapi.ExecRequest{ContainerId: "abc", Cmd: []string{"a", "b c"}, Stdin: in, Stdout: out, Stderr: errOut}))(t)
				attach := value(s.GetAttach(&runtimeapi.AttachRequest{ContainerId: "abc", Stdin: in, Stdout: out, Stderr: errOut}))(t)
				for address, cmd := range map[string]string{exec.GetUrl(): "a|b c", attach.GetUrl(): ""} {
					var o, e strings.Builder
					var options remotecommand.StreamOptions
					if in {
						options.Stdin = strings.NewReader("typed")
					}
					if out {
						options.Stdout = &o
					}
					if errOut {
						options.Stderr = &e
					}
					err := open(t, client, address, options)
					r := <-got
					if r.id != "abc" || strings.Join(r.cmd, "|") != cmd || r.tty || r.in != nil != in || r.out != nil != out || r.err != nil != errOut {
						t.Errorf("the runtime received %+v", r)
					}
					if out != (o.String() == "out of abc") || errOut != (e.String() == "err of abc") {
						t.Errorf("the client received stdout %q, stderr %q", o.String(), e.String())
					}
					if cmd != "" { // an attach has no exit code
						var code clientexec.CodeExitError
						if !errors.As(err, &code) || code.Code != 3 {
							t.Errorf("the exec returns %v, want exit code 3", err)
						}
					}
				}
			})
		}
	}
}

// get requests a URL from the server's handler, without a connection.
func get(s *streaming.Server, address string) int {
	u, err := url.Parse(address)
	if err != nil {
		return 0
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, u.Path, nil))
	return w.Code
}

func TestURLs(t *testing.T) {
	s := serve(t, streaming.Config{}, program{run: func(context.Context, session) error { return nil }})
	t.Run("name the listener", func(t *testing.T) {
		u, err := url.Parse(execURL(t, s, streams{out: true}))
		if err != nil || u.Hostname() != "127.0.0.1" || u.Port() == "0" || u.Scheme != "http" {
			t.Errorf("the URL is %v, %v", u, err)
		}
	})
	t.Run("work once", func(t *testing.T) {
		u := execURL(t, s, streams{out: true})
		must(t, open(t, clients["SPDY"], u, remotecommand.StreamOptions{Stdout: io.Discard}))
		if code := get(s, u); code != http.StatusNotFound {
			t.Errorf("second request: %d, want 404", code)
		}
	})
	t.Run("are for one kind of session", func(t *testing.T) {
		u := execURL(t, s, streams{out: true})
		if code := get(s, strings.Replace(u, "/exec/", "/attach/", 1)); code != http.StatusNotFound {
			t.Errorf("attach by the URL of an exec: %d, want 404", code)
		}
		if code := get(s, u); code != http.StatusNotFound {
			t.Errorf("exec after that attempt: %d, want 404", code)
		}
	})
	t.Run("differ", func(t *testing.T) {
		seen := map[string]bool{}
		for range 100 {
			seen[execURL(t, s, streams{out: true})] = true
		}
		if len(seen) != 100 {
			t.Errorf("%d of 100 URLs are different", len(seen))
		}
	})
	t.Run("are limited in number", func(t *testing.T) {
		var err error
		for i := 0; i <= 1000 && err == nil; i++ {
			_, err = s.GetPortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p"})
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("request 1001 URLs: %v, want resource exhausted", err)
		}
	})
}

// The server is created outside of the synctest bubble: its goroutines wait in the kernel, and in a
// bubble the clock would not advance until they return.
func TestURLsExpire(t *testing.T) {
	s := serve(t, streaming.Config{}, program{})
	synctest.Test(t, func(t *testing.T) {
		early, late := execURL(t, s, streams{out: true}), execURL(t, s, streams{out: true})
		time.Sleep(59 * time.Second)
		// With a valid token, a request without an upgrade gets another error than 404.
		if code := get(s, early); code == http.StatusNotFound {
			t.Errorf("after 59 seconds: %d, want a valid URL", code)
		}
		time.Sleep(2 * time.Second)
		if code := get(s, late); code != http.StatusNotFound {
			t.Errorf("after 61 seconds: %d, want 404", code)
		}
	})
}

func TestAddressInUse(t *testing.T) {
	s := serve(t, streaming.Config{}, program{})
	u := value(url.Parse(execURL(t, s, streams{out: true})))(t)
	var port int
	if _, err := fmt.Sscan(u.Port(), &port); err != nil {
		t.Fatal(err)
	}
	if second, err := streaming.Serve(streaming.Config{Address: "127.0.0.1", Port: port}, program{}); err == nil {
		t.Errorf("two servers listen on the same port; close: %v", second.Close())
	}
}
