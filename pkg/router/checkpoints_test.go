package router

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// freezing is a backend that records its last CheckpointPod request.
type freezing struct {
	inventoried
	asked *runtimeapi.CheckpointPodRequest
}

func (f *freezing) CheckpointPod(_ context.Context, req *runtimeapi.CheckpointPodRequest) (*runtimeapi.CheckpointPodResponse, error) {
	f.asked = req
	return &runtimeapi.CheckpointPodResponse{}, nil
}

func TestPodsAreFrozenByShortIDs(t *testing.T) {
	id := func(begin string) string { return begin + strings.Repeat("0", 64-len(begin)) }
	b := &freezing{inventoried: inventoried{routertest.New("one"), func() []handler.Owned { return []handler.Owned{owned(id("a"), id("c1"), id("c2"), id("d"))} }}}
	o := newOwners()
	o.adopt(b)
	c := checkpoints{owners: o}
	req := &runtimeapi.CheckpointPodRequest{PodSandboxId: "a", ContainerIds: []string{"c1", id("c2"), "d", "nobody's"}}
	test.Must(t, test.Err(c.CheckpointPod(t.Context(), req)))
	if want := []string{id("c1"), id("c2"), id("d"), "nobody's"}; b.asked.GetPodSandboxId() != id("a") || !slices.Equal(b.asked.GetContainerIds(), want) {
		t.Errorf("the backend got %v", b.asked)
	}
	test.Is(t, test.Err(c.CheckpointPod(t.Context(), &runtimeapi.CheckpointPodRequest{PodSandboxId: "a", ContainerIds: []string{"c"}})), errdefs.IsInvalidArgument, "a prefix of two ids")
}
