package main

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
)

// A wrong command line is reported before any request, with exit status 2.
func TestWrongCommandLines(t *testing.T) {
	for line, says := range map[string]string{
		"extra":                  `"berth-controller" takes no arguments, got "extra"; see "berth-controller --help"`,
		"--namspace x":           "unknown flag: --namspace",
		"--namespace=":           "--namespace is empty",
		"--namespace=UP":         `--namespace: "UP" is not a name of a namespace: `,
		"--count-overhead=twice": "--count-overhead=twice must be by-status or once",
		"--kubeconfig /nowhere":  "--kubeconfig /nowhere: no such file or directory",
	} {
		t.Run(line, func(t *testing.T) {
			c := newCommand()
			c.SetArgs(strings.Fields(line))
			if err := c.ExecuteContext(t.Context()); err == nil || commandline.Status(err) != 2 || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v, want status 2 and %q", err, says)
			}
		})
	}
}

// The endpoints report the state of the lease. An invalid address is a mistake of the command line.
func TestServe(t *testing.T) {
	registry, lease := prometheus.NewRegistry(), leaderelection.NewLeaderHealthzAdaptor(time.Second)
	for _, address := range []string{"nonsense", ":99999"} {
		if _, err := serve(t.Context(), address, registry, lease, nil); commandline.Status(err) != 2 || !strings.Contains(err.Error(), "--address="+address) {
			t.Errorf("serve at %s: %v, want status 2", address, err)
		}
	}
	l := test.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	address := l.Addr().String()
	l.Close()
	ready := false
	closed := test.Value(serve(t.Context(), address, registry, lease, func() bool { return ready }))(t)
	defer closed()
	get := func(path string) int {
		r, err := http.Get("http://" + address + path)
		test.Must(t, err)
		defer r.Body.Close()
		return r.StatusCode
	}
	test.Equal(t, "/readyz before it is ready", get("/readyz"), http.StatusServiceUnavailable)
	if ready = true; get("/readyz") != http.StatusOK || get("/healthz") != http.StatusOK {
		t.Error("/readyz or /healthz does not answer 200")
	}
}
