package remote

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/router/routertest"
	"github.com/berth-cri/berth/pkg/wire"
)

func TestSound(t *testing.T) {
	shape := (&runtimeapi.ListContainersResponse{}).ProtoReflect().Descriptor()
	whole := encoded(t, newer(list(3)))
	if !wire.WellFormed(whole, shape) {
		t.Error("a list with unknown fields is not well-formed")
	}
	for name, broken := range map[string]wire.Frame{
		"an incomplete field": whole[:len(whole)-1], "an item that ends early": {0x0a, 2, 0x0a, 9},
		"a name that is not UTF-8": {0x0a, 3, 0x0a, 1, 0xff}, "a label that is not UTF-8": {0x0a, 5, 0x42, 3, 0x0a, 1, 0xfe},
	} {
		if wire.WellFormed(broken, shape) {
			t.Errorf("%s is well-formed", name)
		}
		if proto.Unmarshal(broken, &runtimeapi.ListContainersResponse{}) == nil {
			t.Errorf("%s can be decoded", name)
		}
	}
}

// broken returns a daemon that responds to some methods with bytes that are not their message.
func broken(t *testing.T, bytes wire.Frame, methods ...string) *daemon {
	t.Helper()
	d := &daemon{Backend: routertest.New("other"), path: filepath.Join(t.TempDir(), "cri.sock")}
	l := test.Value(net.Listen("unix", d.path))(t)
	d.server = grpc.NewServer(grpc.ForceServerCodecV2(wire.NewCodec()),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
			for _, m := range methods {
				if strings.HasSuffix(info.FullMethod, "/"+m) {
					return &bytes, nil
				}
			}
			return serve(handler.WithDefinition(ctx, &handler.Definition{Name: "x"}), req)
		}))
	runtimeapi.RegisterRuntimeServiceServer(d.server, d)
	runtimeapi.RegisterImageServiceServer(d.server, d)
	go serve(t, d.server, l)
	t.Cleanup(d.server.Stop)
	return d
}

func TestGarbageIsNotPassedOn(t *testing.T) {
	garbage := wire.Frame{0x0a, 3, 0x0a, 1, 0xff}
	t.Run("from the start", func(t *testing.T) {
		b := connect(t, broken(t, garbage, "ListContainers"), t.TempDir())
		test.Eventually(t, "the garbage is reported", func() bool { return strings.Contains(b.Health().Reason, "not a message of the CRI") })
		if b.Health().Phase != Down {
			t.Errorf("%+v", b.Health())
		}
	})
	d := newDaemon(t)
	b := ready(t, d)
	ctx := legacy(t)
	id := pod(t, b)
	test.Must(t, b.lists.sync(ctx))
	b.runtimeService.lists.caller.conn = answering{b.conn, garbage}
	l, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(l.GetItems()) != 1 || l.GetItems()[0].GetId() != id {
		t.Errorf("listed %v, %v", l, err)
	}
	s, err := b.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil || len(s.ProtoReflect().GetUnknown()) != 0 {
		t.Errorf("got the stats %v, %v", s, err)
	}
}

// answering is a connection that responds to every call with the same frame.
type answering struct {
	grpc.ClientConnInterface
	wire.Frame
}

func (a answering) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	if f, ok := reply.(*wire.Frame); ok {
		*f = a.Frame
	}
	return nil
}

func TestErrorsOfListsCostNobodyElse(t *testing.T) {
	var fail atomic.Pointer[error]
	d := newDaemonThat(t, func(_ context.Context, rpc string) error {
		if err := fail.Load(); err != nil && strings.HasPrefix(rpc, "List") {
			return *err
		}
		return nil
	})
	b := ready(t, d)
	ctx := legacy(t)
	pod(t, b)
	for _, code := range []codes.Code{codes.Unknown, codes.NotFound, codes.Internal} {
		err := status.Error(code, "broken")
		fail.Store(&err)
		l, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(l.GetItems()) != 1 {
			t.Errorf("%v: listed %v, %v", code, l, err)
		}
		if _, err := b.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{}); err != nil {
			t.Errorf("%v: stats: %v", code, err)
		}
	}
}

// A daemon whose lists keep failing is not ready, although it responds: exits would be missed.
func TestADaemonThatCannotListIsNotReady(t *testing.T) {
	var fail atomic.Bool
	d := newDaemonThat(t, func(_ context.Context, rpc string) error {
		if fail.Load() && rpc == "ListContainers" {
			return status.Error(codes.Internal, "its store is damaged")
		}
		return nil
	})
	b := ready(t, d)
	lists := func() {
		test.Check(t, test.Err(b.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})))
		test.Check(t, test.Err(b.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})))
		b.node.monitor.suspect()
	}
	ago := time.Now().Add(-2 * lastknown.Tolerated)
	b.known.Mu.Lock()
	b.known.Containers.At = ago // since then, lists were not requested
	b.known.Mu.Unlock()
	fail.Store(true)
	lists()
	test.Equal(t, "after one failure", b.known.ListFailure(), "")
	fail.Store(false)
	lists()
	b.known.Fail(&b.known.Containers, "its store is damaged", ago)
	fail.Store(true)
	test.Eventually(t, "not ready", func() bool {
		lists()
		h := b.Health()
		return h.Phase == Connected && strings.Contains(h.Reason, "its store is damaged")
	})
	fail.Store(false)
	test.Eventually(t, "ready again", func() bool { lists(); return b.Health().Phase == Ready })
}

func TestADaemonThatSaysNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cri.sock")
	l := test.Value(net.Listen("unix", path))(t)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	b := connect(t, &daemon{path: path}, t.TempDir())
	begin := time.Now()
	for range 3 {
		if _, err := b.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: "c"}); status.Code(err) != codes.Unavailable {
			t.Errorf("a call: %v", err)
		}
		test.Checkf(t, test.Err(b.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})), "a list")
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("calls took %v", took)
	}
	test.Eventually(t, "a reason", func() bool {
		return strings.Contains(b.Health().Reason, "no answer") || strings.Contains(b.Health().Reason, "does not speak gRPC")
	})
}

// The reason names the part of the initialization that failed.
func TestADaemonThatFailsWhenItIsBack(t *testing.T) {
	const initialize, list = "it responds, but cannot be initialized: no disk", "it responds, but cannot list its pods: no disk"
	for method, want := range map[string]string{
		"/Version": initialize, "/RuntimeConfig": initialize, "/UpdateRuntimeConfig": initialize, "Sandbox": list, "Containers": list,
	} {
		d := newDaemon(t)
		b := ready(t, d)
		test.Must(t, test.Err(b.UpdateRuntimeConfig(t.Context(), &runtimeapi.UpdateRuntimeConfigRequest{})))
		d.server.Stop()
		test.Eventually(t, "down", func() bool { b.node.monitor.suspect(); return b.Health().Phase == Down })
		d.before.Store(new(func(_ context.Context, called string) error {
			if strings.Contains(called, method) {
				return status.Error(codes.Internal, "no disk")
			}
			return nil
		}))
		d.start(t)
		test.Eventually(t, method+" fails", func() bool { b.node.monitor.suspect(); return b.Health().Reason == want })
	}
}

// A daemon that was restarted before a call found it down needs its settings again, like one that
// was down for long.
func TestADaemonThatWasRestartedUnseen(t *testing.T) {
	d := newDaemon(t)
	b := ready(t, d)
	const cidr = "10.0.0.0/24"
	settings := &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}}}
	test.Must(t, test.Err(b.UpdateRuntimeConfig(t.Context(), settings)))
	d.told.Store("")
	b.node.support.Load().markMissing("/a/B")
	d.server.Stop()
	d.start(t) // no call has met the lost connection
	test.Eventually(t, "the daemon got its settings again", func() bool {
		b.node.monitor.suspect()
		return b.Health().Phase == Ready && b.node.support.Load().has("/a/B") && d.told.Load() == cidr
	})
}
