package remote

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/router/routertest"
)

// taught notes the addresses that a daemon is told.
type taught struct {
	runtimeapi.RuntimeServiceServer
	cidr atomic.Pointer[string]
}

func (d *taught) UpdateRuntimeConfig(_ context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	cidr := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	d.cidr.Store(&cidr)
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

func (d *taught) knows(cidr string) bool {
	got := d.cidr.Load()
	return got != nil && *got == cidr
}

// A daemon that was restarted so quickly that nobody saw it down has forgotten
// as much as one that was away for long.
func TestADaemonThatIsBackUnseenIsToldAgain(t *testing.T) {
	d := &daemon{Backend: routertest.New("other"), path: filepath.Join(t.TempDir(), "cri.sock")}
	before := &taught{RuntimeServiceServer: d}
	d.service = before
	d.start(t)
	t.Cleanup(func() { d.server.Stop() })
	b := connect(t, d, t.TempDir())
	until(t, "ready", func() bool { return b.Health().Phase == Ready })
	const cidr = "10.1.2.0/24"
	_, err := b.UpdateRuntimeConfig(t.Context(), &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{
		NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr},
	}})
	if err != nil || !before.knows(cidr) {
		t.Fatal(err)
	}
	d.server.Stop()
	after := &taught{RuntimeServiceServer: d}
	d.service = after
	d.start(t)
	until(t, "told again", func() bool { return after.knows(cidr) })
}
