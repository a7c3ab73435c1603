package remote

import (
	"context"
	"path"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

// If a daemon counts as down during a call that changes something, the client gets an
// error at once, but the daemon may finish the call: a list shows the result later.
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
	b.node.monitor.observe(ctx, observation{lost: "it hangs"})
	if err := <-answered; status.Code(err) != codes.Unavailable {
		t.Errorf("the client got %v", err)
	}
	close(let)
	test.Checkf(t, <-canceled, "the context of the daemon's call")
	test.Eventually(t, "the pod is listed", func() bool {
		_ = b.lists.sync(unmonitored(ctx))
		return len(b.Inventory()) == 1
	})
}

// If a caller gives up, the daemon's call is canceled, also one that changes something.
func TestACallerThatGivesUp(t *testing.T) {
	for method, call := range map[string]func(context.Context, *Backend) error{
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName: func(ctx context.Context, b *Backend) error {
			return test.Err(b.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}}))
		},
		runtimeapi.RuntimeService_ListContainerStats_FullMethodName: func(ctx context.Context, b *Backend) error {
			return test.Err(b.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{}))
		},
		runtimeapi.RuntimeService_ListPodSandbox_FullMethodName: func(ctx context.Context, b *Backend) error {
			return test.Err(b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: "x"}}))
		},
	} {
		t.Run(path.Base(method), func(t *testing.T) {
			d := newDaemon(t)
			b := ready(t, d)
			ctx, cancel := context.WithCancel(legacy(t))
			defer cancel()
			ended := make(chan error, 1)
			before := func(asked context.Context, m string) error {
				if m != method {
					return nil
				}
				cancel()
				select {
				case <-asked.Done():
				case <-time.After(20 * time.Second):
				}
				ended <- asked.Err()
				return asked.Err()
			}
			d.before.Store(&before)
			test.Equal(t, "the call's code", status.Code(call(ctx, b)), codes.Canceled)
			select {
			case err := <-ended:
				test.ErrorIs(t, err, context.Canceled, "the daemon's context")
			case <-time.After(30 * time.Second):
				t.Error("the daemon's call was not canceled")
			}
		})
	}
}
