package remote

import (
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestHostsOfStreams(t *testing.T) {
	s := streamHosts{permitted: []string{"vm.example", "203.0.113.9"}, own: func() ([]net.Addr, error) {
		return []net.Addr{
			&net.IPNet{IP: net.IPv4(192, 0, 2, 7), Mask: net.CIDRMask(24, 32)},
			&net.IPNet{IP: net.ParseIP("2001:db8::7"), Mask: net.CIDRMask(64, 128)},
		}, nil
	}}
	for address, want := range map[string]bool{
		"http://127.0.0.1:40000/exec/x":           true,
		"https://127.0.0.1:10010/attach/x":        true,
		"http://127.1.2.3/exec/x":                 true,
		"http://[::1]:40000/exec/x":               true,
		"http://[::ffff:127.0.0.1]:40000/exec/x":  true,
		"http://localhost:40000/exec/x":           true,
		"http://0.0.0.0:40000/exec/x":             true,
		"http://[::]:40000/exec/x":                true,
		"http://192.0.2.7:40000/exec/x":           true,
		"http://[2001:db8::7]:40000/exec/x":       true,
		"http://vm.example:40000/exec/x":          true,
		"http://203.0.113.9/exec/x":               true,
		"http://192.0.2.8:40000/exec/x":           false,
		"http://169.254.169.254/latest/meta-data": false,
		"http://10.96.0.1:443/api":                false,
		"http://[2001:db8::8]:40000/exec/x":       false,
		"http://node.example:40000/exec/x":        false,
		"http://localhost.evil.example/exec/x":    false,
		"http://127.0.0.1.evil.example/exec/x":    false,
		"http://127.0.0.1@evil.example/exec/x":    false,
		"http://user@127.0.0.1/exec/x":            false,
		"http://2130706433/exec/x":                false,
		"ftp://127.0.0.1/exec/x":                  false,
		"unix:///run/x.sock":                      false,
		"127.0.0.1:40000":                         false,
		"/exec/x":                                 false,
		"http:///exec/x":                          false,
		"":                                        false,
	} {
		if err := s.check(address); (err == nil) != want {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// For each kind of session, a URL with another host is refused with an error that
// names the daemon and the host.
func TestAddressesOfStreams(t *testing.T) {
	d := newDaemon(t)
	b := ready(t, d)
	ask := map[string]func() (string, error){
		"exec": func() (string, error) {
			r, err := b.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: "c"})
			return r.GetUrl(), err
		},
		"attach": func() (string, error) {
			r, err := b.Attach(t.Context(), &runtimeapi.AttachRequest{ContainerId: "c"})
			return r.GetUrl(), err
		},
		"port-forward": func() (string, error) {
			r, err := b.PortForward(t.Context(), &runtimeapi.PortForwardRequest{PodSandboxId: "s"})
			return r.GetUrl(), err
		},
	}
	for name, call := range ask {
		d.streams.Store("http://127.0.0.1:40000/x/y")
		test.Equal(t, name, test.Value(call())(t), "http://127.0.0.1:40000/x/y")
		d.streams.Store("http://169.254.169.254/x/y")
		got, err := call()
		if status.Code(err) != codes.FailedPrecondition || got != "" {
			t.Errorf("%s on another host: %q, %v", name, got, err)
		} else if text := err.Error(); !strings.Contains(text, d.path) || !strings.Contains(text, "169.254.169.254") {
			t.Errorf("%s on another host: %v", name, err)
		}
	}
}
