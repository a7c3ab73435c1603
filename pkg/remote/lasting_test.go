package remote

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

// A daemon that is taken to be down while it does something is not told to leave
// it half done; whoever asked for it is told at once, and sees it in the next list.
func TestADaemonThatHangsIsNotDisturbed(t *testing.T) {
	begun, let, canceled := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	d := newDaemonThat(t, func(ctx context.Context, rpc string) error {
		if rpc == "RunPodSandbox" {
			close(begun)
			<-let
			canceled <- ctx.Err()
		}
		return nil
	})
	b := ready(t, d)
	ctx := legacy(t)
	answered := make(chan error, 1)
	go func() {
		_, err := b.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}})
		answered <- err
	}()
	<-begun
	b.node.monitor.note(ctx, observation{lost: "it hangs"})
	if err := <-answered; status.Code(err) != codes.Unavailable {
		t.Errorf("who asked for the pod is told %v", err)
	}
	close(let)
	test.Checkf(t, <-canceled, "the daemon was told to leave it")
	until(t, "the pod is listed", func() bool {
		_ = b.lists.sync(ahead(ctx))
		return len(b.Inventory()) == 1
	})
}

// A caller that gives up takes its call along, also a lasting one.
func TestACallerThatGivesUp(t *testing.T) {
	begun, canceled := make(chan struct{}), make(chan struct{})
	d := newDaemonThat(t, func(ctx context.Context, rpc string) error {
		if rpc == "RunPodSandbox" {
			close(begun)
			<-ctx.Done()
			close(canceled)
			return ctx.Err()
		}
		return nil
	})
	b := ready(t, d)
	ctx, cancel := context.WithCancel(handler.WithDefinition(t.Context(), &handler.Definition{Name: "legacy"}))
	go func() { <-begun; cancel() }()
	_, err := b.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}})
	if status.Code(err) != codes.Canceled {
		t.Errorf("a call that was given up: %v", err)
	}
	<-canceled
}
