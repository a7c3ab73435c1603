package router_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// If a backend returns the id of another backend's pod or container, the call fails
// and the owner stays the same.
func TestABackendThatNamesWhatAnotherHas(t *testing.T) {
	// Backends whose names begin with the same letter create the same ids.
	honest, liar := routertest.New("one"), routertest.New("other")
	n := serveReady(t, table(t, 1, "runc", ready("runc", honest), ready("kata", liar)), honest, liar)
	first := n.run(t, "runc")
	_, err := n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "kata", Config: &runtimeapi.PodSandboxConfig{}})
	wantCode(t, err, codes.AlreadyExists)
	if !strings.Contains(err.Error(), first) || !strings.Contains(err.Error(), `"other"`) {
		t.Error(err)
	}
	if owner, _ := n.router.Find(first); owner.Backend.ID() != "one" {
		t.Errorf("the owner of %s changed to %s", first, owner.Backend.ID())
	}
	if _, err := n.CreateContainer(ctx(t), &runtimeapi.CreateContainerRequest{PodSandboxId: first}); err != nil { // has the number 2
		t.Fatal(err)
	}
	_, err = n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "kata", Config: &runtimeapi.PodSandboxConfig{}})
	if err != nil { // no sandbox has the number 2
		t.Fatal(err)
	}
	third := n.run(t, "kata")
	for range 2 { // have the numbers 3 and 4
		test.Must(t, test.Err(n.CreateContainer(ctx(t), &runtimeapi.CreateContainerRequest{PodSandboxId: first})))
	}
	wantCode(t, test.Err(n.CreateContainer(ctx(t), &runtimeapi.CreateContainerRequest{PodSandboxId: third})), codes.AlreadyExists)
}
