package task

import (
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestNamesOfRunners(t *testing.T) {
	records, _, err := store.Open[pod.SandboxSpec, pod.SandboxStatus](t.TempDir())
	test.Must(t, err)
	for id, tc := range map[string]struct {
		kind handler.Type
		ep   *shim.Endpoint
		want string
	}{
		"oci":         {handler.OCI, nil, "key"},
		"shim":        {handler.Shim, &shim.Endpoint{Address: "unix:///s"}, "unix:///s"},
		"no shim yet": {handler.Shim, nil, "no shim yet"},
	} {
		o := test.Value(records.Create(id, pod.SandboxSpec{Definition: &handler.Definition{Type: tc.kind}, Supervisor: "key"}, pod.SandboxStatus{Shim: tc.ep}, store.Relaxed))(t)
		test.Equal(t, id, pod.NewSandbox(o, &Service{}).Runner.Name(), tc.want)
	}
}
