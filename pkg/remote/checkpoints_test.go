package remote

import (
	"context"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// freezer is a daemon that can checkpoint and restore pods.
type freezer struct {
	*daemon
	restored  atomic.Pointer[runtimeapi.RestorePodRequest]
	described atomic.Int64
}

func (f *freezer) CheckpointPod(_ context.Context, req *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	return nil, status.Error(codes.FailedPrecondition, "frozen to "+req.GetOutputPath())
}

func (f *freezer) RestorePod(_ context.Context, req *runtimeapi.RestorePodRequest) (*runtimeapi.RestorePodResponse, error) {
	f.restored.Store(req)
	return &runtimeapi.RestorePodResponse{PodSandboxId: "p", RestoredContainers: []*runtimeapi.RestoredContainer{
		{Name: "a", ContainerId: "ca"}, {Name: "b", ContainerId: "cb"},
	}}, nil
}

func (f *freezer) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	f.described.Add(1)
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: []*runtimeapi.MetricDescriptor{{Name: "m"}}}, nil
}

func newFreezer(t *testing.T) *freezer {
	t.Helper()
	f := &freezer{daemon: &daemon{Backend: routertest.New("other"), path: t.TempDir() + "/cri.sock"}}
	f.service = f
	f.start(t)
	t.Cleanup(func() { f.server.Stop() })
	return f
}

func TestPodsAreFrozenAndThawed(t *testing.T) {
	f := newFreezer(t)
	b := ready(t, f.daemon)
	ctx := legacy(t)
	if _, err := b.CheckpointPod(ctx, &runtimeapi.CheckpointPodRequest{OutputPath: "/x"}); status.Code(err) != codes.FailedPrecondition ||
		status.Convert(err).Message() != "frozen to /x" {
		t.Error(err)
	}
	image := func() *runtimeapi.ImageSpec { return &runtimeapi.ImageSpec{Image: "i", RuntimeHandler: "legacy"} }
	req := &runtimeapi.RestorePodRequest{
		CheckpointPath: "/x", RuntimeHandler: "legacy",
		Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "n"}},
		ContainerConfigs: []*runtimeapi.ContainerConfig{
			{Metadata: &runtimeapi.ContainerMetadata{Name: "a"}, Image: image()},
			{Metadata: &runtimeapi.ContainerMetadata{Name: "b"}, Mounts: []*runtimeapi.Mount{{Image: image()}, {HostPath: "/h"}}},
		},
	}
	resp, err := b.RestorePod(ctx, req)
	if err != nil || resp.GetPodSandboxId() != "p" || len(resp.GetRestoredContainers()) != 2 {
		t.Fatalf("%v, %v", resp, err)
	}
	got := f.restored.Load()
	if got.GetRuntimeHandler() != "runc" || got.GetContainerConfigs()[0].GetImage().GetRuntimeHandler() != "runc" ||
		got.GetContainerConfigs()[1].GetMounts()[0].GetImage().GetRuntimeHandler() != "runc" || got.GetContainerConfigs()[1].GetMounts()[1].GetHostPath() != "/h" {
		t.Errorf("the daemon got %v", got)
	}
	if req.GetContainerConfigs()[0].GetImage().GetRuntimeHandler() != "legacy" || req.GetContainerConfigs()[1].GetMounts()[0].GetImage().GetRuntimeHandler() != "legacy" {
		t.Errorf("the request was changed: %v", req)
	}
	inventory := b.Inventory()
	if len(inventory) != 1 || inventory[0].Sandbox != "p" || inventory[0].Handler != "legacy" || len(inventory[0].Containers) != 2 {
		t.Errorf("the inventory is %+v", inventory)
	}
	s := b.known.State()
	if s.Containers["ca"].GetMetadata().GetName() != "a" || s.Containers["cb"].GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
		t.Errorf("the last known state is %v", s)
	}
}

// Descriptors are requested once per connection: they do not change while a daemon runs.
func TestMetricsAreDescribedOncePerConnection(t *testing.T) {
	f := newFreezer(t)
	b := ready(t, f.daemon)
	ask := func() {
		t.Helper()
		for range 3 {
			resp, err := b.ListMetricDescriptors(t.Context(), &runtimeapi.ListMetricDescriptorsRequest{})
			if err != nil || len(resp.GetDescriptors()) != 1 {
				t.Fatalf("%v, %v", resp, err)
			}
		}
	}
	ask()
	if n := f.described.Load(); n != 1 {
		t.Errorf("the daemon was called %d times", n)
	}
	f.server.Stop()
	test.Eventually(t, "down", func() bool { return b.Health().Phase == Down })
	f.start(t)
	test.Eventually(t, "ready again", func() bool { return b.Health().Phase == Ready })
	ask()
	if n := f.described.Load(); n != 2 {
		t.Errorf("the daemon was called %d times on two connections", n)
	}
}
