package observe

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/step"
)

// slowNode is a CRI whose calls have steps.
type slowNode struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	runtimeapi.UnimplementedImageServiceServer
}

func (slowNode) RunPodSandbox(ctx context.Context, r *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	SetHandler(ctx, r.GetRuntimeHandler())
	_, end := step.Begin(ctx, step.Network)
	end(nil)
	if r.GetConfig().GetMetadata().GetName() == "bad" {
		return nil, status.Error(codes.Unavailable, "no address is left")
	}
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: "s-" + r.GetConfig().GetMetadata().GetUid()}, nil
}

func (slowNode) CreateContainer(_ context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return &runtimeapi.CreateContainerResponse{ContainerId: fmt.Sprint(r.GetPodSandboxId(), "-", r.GetConfig().GetMetadata().GetName(), r.GetConfig().GetMetadata().GetAttempt())}, nil
}

func (slowNode) StartContainer(ctx context.Context, _ *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	_, end := step.Begin(ctx, step.Runtime)
	end(nil)
	return &runtimeapi.StartContainerResponse{}, nil
}

func (slowNode) PullImage(ctx context.Context, _ *runtimeapi.PullImageRequest) (*runtimeapi.PullImageResponse, error) {
	_, end := step.Begin(ctx, step.Fetch)
	end(nil)
	return &runtimeapi.PullImageResponse{ImageRef: "sha256:1"}, nil
}

func podConfig(name, uid string) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "n", Uid: uid}}
}

func containerNamed(name string, attempt uint32) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt}}
}

func TestStarts(t *testing.T) {
	known := NewStarts()
	conn := serveNode(t, New(Options{Starts: known}))
	node, images := runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
	must := func(_ any, err error) {
		t.Helper()
		test.Must(t, err)
	}
	ctx := t.Context()
	// A pull without a pod belongs to no start.
	must(images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "early"}}))
	if _, err := node.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: podConfig("bad", "0"), RuntimeHandler: "crun"}); err == nil {
		t.Fatal("the start of pod bad succeeded")
	}
	must(node.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: podConfig("web", "1"), RuntimeHandler: "runc"}))
	must(images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "app:1"}, SandboxConfig: podConfig("web", "1")}))
	for attempt := range uint32(2) { // the second is a restart
		must(node.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: "s-1", Config: containerNamed("app", attempt)}))
		must(node.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: fmt.Sprint("s-1-app", attempt)}))
	}
	must(node.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: "another's"}))

	recent := known.Recent()
	if len(recent) != 2 {
		t.Fatalf("%+v", recent)
	}
	web, bad := recent[0], recent[1]
	if bad.Sandbox != "" || bad.Handler != "crun" || len(bad.Calls) != 1 || bad.Calls[0].Code != codes.Unavailable {
		t.Errorf("the failed start is %+v", bad)
	}
	if web.Namespace != "n" || web.Name != "web" || web.UID != "1" || web.Sandbox != "s-1" || web.Handler != "runc" || web.Began.IsZero() {
		t.Errorf("the start is %+v", web)
	}
	var calls []string
	var sum time.Duration
	for _, c := range web.Calls {
		word := c.RPC + " " + c.Of
		for _, s := range c.Steps {
			word += " " + s.Name
		}
		calls = append(calls, word)
		sum += c.Took
	}
	test.Equal(t, "calls", fmt.Sprint(calls), "[RunPodSandbox  network PullImage app:1 fetch CreateContainer app StartContainer app runtime]")
	if web.Took() != sum || web.Calls[0].Took < web.Calls[0].Steps[0].Took || web.Calls[0].Steps[0].Took <= 0 {
		t.Errorf("the start took %v, its first call %v, of which the network took %v", web.Took(), web.Calls[0].Took, web.Calls[0].Steps[0].Took)
	}
}

// The number of starts is bounded, and so is the number of calls of one start, such as
// repeated creations of a container.
func TestStartsAreBounded(t *testing.T) {
	known := NewStarts()
	conn := serveNode(t, New(Options{Starts: known}))
	node := runtimeapi.NewRuntimeServiceClient(conn)
	for i := range 300 {
		test.Must(t, test.Err(node.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: podConfig("p", fmt.Sprint(i))})))
	}
	for range 200 {
		test.Must(t, test.Err(node.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: "s-299", Config: containerNamed("app", 0)})))
	}
	recent := known.Recent()
	if len(recent) != 256 || recent[0].UID != "299" || recent[255].UID != "44" {
		t.Errorf("%d pods from %s to %s", len(recent), recent[0].UID, recent[len(recent)-1].UID)
	}
	if n := len(recent[0].Calls); n != 64 {
		t.Errorf("%d calls", n)
	}
}

func serveNode(t *testing.T, o *Observer) *grpc.ClientConn {
	t.Helper()
	return dial(t, o.ServerOptions(), func(s *grpc.Server) {
		runtimeapi.RegisterRuntimeServiceServer(s, slowNode{})
		runtimeapi.RegisterImageServiceServer(s, slowNode{})
	})
}
