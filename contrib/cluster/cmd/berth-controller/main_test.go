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

// What is wrong with the command line is said before anything is asked, by a status of its own.
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
				t.Errorf("got %v", err)
			}
		})
	}
}

// The endpoints answer for the lease, and an address that cannot be is a mistake of the command line.
func TestServe(t *testing.T) {
	registry, lease := prometheus.NewRegistry(), leaderelection.NewLeaderHealthzAdaptor(time.Second)
	for _, address := range []string{"nonsense", ":99999"} {
		if _, err := serve(t.Context(), address, registry, lease, nil); commandline.Status(err) != 2 || !strings.Contains(err.Error(), "--address="+address) {
			t.Errorf("%s: %v", address, err)
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
	test.Equal(t, "not ready", get("/readyz"), http.StatusServiceUnavailable)
	if ready = true; get("/readyz") != http.StatusOK || get("/healthz") != http.StatusOK {
		t.Error("it is not ready")
	}
}
