package router_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// A backend that answers with the id of another backend's pod, or container, gets
// no hold of it: the call fails, and the id stays the other's.
func TestABackendThatNamesWhatAnotherHas(t *testing.T) {
	// Backends of the same first letter number what they make alike.
	honest, liar := routertest.New("one"), routertest.New("other")
	n := serveReady(t, table(t, 1, "runc", ready("runc", honest), ready("kata", liar)), honest, liar)
	first := n.run(t, "runc")
	_, err := n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "kata", Config: &runtimeapi.PodSandboxConfig{}})
	wantCode(t, err, codes.AlreadyExists)
	if !strings.Contains(err.Error(), first) || !strings.Contains(err.Error(), `"other"`) {
		t.Error(err)
	}
	if owner, _ := n.router.Find(first); owner.Backend.ID() != "one" {
		t.Errorf("%s is of %s now", first, owner.Backend.ID())
	}
	if _, err := n.CreateContainer(ctx(t), &runtimeapi.CreateContainerRequest{PodSandboxId: first}); err != nil { // its number is 2
		t.Fatal(err)
	}
	_, err = n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "kata", Config: &runtimeapi.PodSandboxConfig{}})
	if err != nil { // 2 is no sandbox's
		t.Fatal(err)
	}
	third := n.run(t, "kata")
	for range 2 { // 3 and 4
		test.Must(t, test.Err(n.CreateContainer(ctx(t), &runtimeapi.CreateContainerRequest{PodSandboxId: first})))
	}
	wantCode(t, test.Err(n.CreateContainer(ctx(t), &runtimeapi.CreateContainerRequest{PodSandboxId: third})), codes.AlreadyExists)
}
