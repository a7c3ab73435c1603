package installer

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestHandlersOf(t *testing.T) {
	named := func(names ...string) *runtimeapi.StatusResponse {
		r := &runtimeapi.StatusResponse{Info: map[string]string{"config": `{"containerd": {"runtimes": {"old": {}}}}`}}
		for _, name := range names {
			r.RuntimeHandlers = append(r.RuntimeHandlers, &runtimeapi.RuntimeHandler{Name: name})
		}
		return r
	}
	for name, c := range map[string]struct {
		state *runtimeapi.StatusResponse
		want  []string
	}{
		"from the field of the CRI":            {named("runc", "", "crun"), []string{"crun", "runc"}},
		"from the info of an older containerd": {named(), []string{"old"}},
		"names that no class can have":         {named("runc", "kata_qemu", "../../root/x"), []string{"runc"}},
		"only the default":                     {named(""), nil},
		"no handlers":                          {&runtimeapi.StatusResponse{}, nil},
		"another configuration":                {&runtimeapi.StatusResponse{Info: map[string]string{"config": "[crio]"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			test.EqualLists(t, "the handlers", handlersOf(c.state), c.want)
		})
	}
}

// older is a daemon without RuntimeConfig, newer is one with it.
type older struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func (older) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "runc"}}}, nil
}

type newer struct{ older }

func (newer) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}}, nil
}

func TestAsk(t *testing.T) {
	for name, c := range map[string]struct {
		daemon runtimeapi.RuntimeServiceServer
		driver string
	}{"older": {older{}, ""}, "newer": {newer{}, "cgroupfs"}} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			test.Must(t, os.MkdirAll(filepath.Join(root, "run"), 0o755))
			l := test.Value((&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(root, "run/d.sock")))(t)
			server := grpc.NewServer()
			runtimeapi.RegisterRuntimeServiceServer(server, c.daemon)
			go server.Serve(l) //nolint:errcheck // ends with the test
			t.Cleanup(server.Stop)
			b, err := CRI{Root: root}.Ask(t.Context(), "unix:///run/d.sock")
			if err != nil || b.CgroupDriver != c.driver || !slices.Equal(b.Handlers, []string{"runc"}) {
				t.Errorf("got %+v, %v, want the handler runc and the driver %q", b, err, c.driver)
			}
		})
	}
}
