package remote

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"

	"github.com/soheilhy/cmux"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// criOMux shares a socket as CRI-O does: a connection is gRPC's only if the
// content type of its first call is "application/grpc", with nothing behind it.
func criOMux(t testing.TB, l net.Listener) net.Listener {
	t.Helper()
	m := cmux.New(l)
	calls := m.MatchWithWriters(cmux.HTTP2MatchHeaderFieldSendSettings("content-type", "application/grpc"))
	go func() {
		if err := m.Serve(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("serve the shared socket: %v", err)
		}
	}()
	t.Cleanup(m.Close)
	return calls
}

// Whichever call is the first of a connection, and of whatever form it is, the
// daemon behind the shared socket gets it.
func TestDaemonThatSharesItsSocket(t *testing.T) {
	start := func(t *testing.T) *daemon {
		d := &daemon{Backend: routertest.New("other"), path: filepath.Join(t.TempDir(), "cri.sock"), front: criOMux}
		d.start(t)
		t.Cleanup(func() { d.server.Stop() })
		return d
	}
	t.Run("backend", func(t *testing.T) {
		b := connect(t, start(t), t.TempDir())
		until(t, "ready", func() bool { return b.Health().Phase == Ready })
		ctx := handler.WithDefinition(t.Context(), &handler.Definition{Name: "legacy"})
		pod, err := b.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{
			RuntimeHandler: "legacy", Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "a", Uid: "u"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod.GetPodSandboxId()}); err != nil {
			t.Error(err)
		}
	})
	for name, call := range map[string]func(context.Context, *dialer, string) error{
		"unary": func(ctx context.Context, d *dialer, method string) error {
			conn, err := d.open()
			if err != nil {
				return err
			}
			defer conn.Close()
			var answer frame
			return conn.Invoke(ctx, method, &runtimeapi.StatusRequest{}, &answer)
		},
		"stream": func(ctx context.Context, d *dialer, method string) error {
			conn, err := d.open()
			if err != nil {
				return err
			}
			defer conn.Close()
			stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
			if err != nil {
				return err
			}
			if err := errors.Join(stream.SendMsg(&runtimeapi.StatusRequest{}), stream.CloseSend()); err != nil {
				return err
			}
			var answer frame
			return stream.RecvMsg(&answer)
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(t.Context(), &dialer{path: start(t).path}, runtimeapi.RuntimeService_Status_FullMethodName); err != nil {
				t.Error(err)
			}
		})
	}
}
