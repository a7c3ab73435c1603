package observe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

// service is a CRI whose calls run serve.
type service struct {
	runtimeapi.UnimplementedRuntimeServiceServer
	serve func(ctx context.Context) error
}

func (s service) RunPodSandbox(ctx context.Context, _ *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: "5a"}, s.serve(ctx)
}

func (s service) StreamContainers(_ *runtimeapi.StreamContainersRequest, to grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	return s.serve(to.Context())
}

// served serves on a real socket, and returns a connection to it and the registry of metrics.
func served(t *testing.T, serve func(context.Context) error, options ...grpc.ServerOption) (*grpc.ClientConn, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	return dial(t, append(options, New(Options{Metrics: registry}).ServerOptions()...), func(s *grpc.Server) {
		runtimeapi.RegisterRuntimeServiceServer(s, service{serve: serve})
	}), registry
}

// dial starts a server with the services that register adds, and connects to it.
func dial(t *testing.T, options []grpc.ServerOption, register func(*grpc.Server)) *grpc.ClientConn {
	t.Helper()
	server := grpc.NewServer(options...)
	register(server)
	socket := filepath.Join(t.TempDir(), "cri.sock")
	l := test.Value((&net.ListenConfig{}).Listen(t.Context(), "unix", socket))(t)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		test.Check(t, <-done)
	})
	conn := test.Value(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// loggingAs returns options by which calls use the logger of ctx.
func loggingAs(ctx context.Context) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(call context.Context, req any, _ *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
			return serve(log.WithLogger(call, log.G(ctx)), req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
			return serve(srv, &observedStream{ss, log.WithLogger(ss.Context(), log.G(ctx))})
		}),
	}
}

// ends makes a unary and a streaming call and returns both errors.
func ends(t *testing.T, conn *grpc.ClientConn) [2]error {
	t.Helper()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	_, unary := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "any text of a client"})
	s := test.Value(client.StreamContainers(t.Context(), &runtimeapi.StreamContainersRequest{}))(t)
	_, stream := s.Recv()
	if errors.Is(stream, io.EOF) {
		stream = nil
	}
	return [2]error{unary, stream}
}

// succeed fails the test if one of both calls fails.
func succeed(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	if got := ends(t, conn); got != [2]error{} {
		t.Errorf("the calls ended with %v", got)
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	conn, _ := served(t, func(context.Context) error { return fmt.Errorf("no room: %w", errdefs.ErrResourceExhausted) })
	for _, err := range ends(t, conn) {
		if st := status.Convert(err); st.Code() != codes.ResourceExhausted || st.Message() != "no room" {
			t.Errorf("got %v", err)
		}
	}
}

// scraped returns the lines of one metric, as Prometheus gets them.
func scraped(t *testing.T, r *prometheus.Registry, metric string) (found []string) {
	t.Helper()
	out := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(out, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
	for line := range strings.Lines(out.Body.String()) {
		if strings.HasPrefix(line, metric+"{") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found
}

// counted waits until the counts of calls are want: a response may arrive before
// its call is counted.
func counted(t *testing.T, r *prometheus.Registry, want ...string) {
	t.Helper()
	test.Retry(t, func() error {
		if got := scraped(t, r, "berth_rpc_duration_seconds_count"); !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
}

// Labels never contain text of a client: a client must not be able to fill the
// memory.
func TestLabelsAreBounded(t *testing.T) {
	conn, registry := served(t, func(ctx context.Context) error {
		SetHandler(ctx, "runc")
		return nil
	})
	for range 3 {
		succeed(t, conn)
	}
	for i := range 10 {
		err := conn.Invoke(t.Context(), fmt.Sprintf("/runtime.v1.RuntimeService/Nothing%d", i), &runtimeapi.VersionRequest{}, &runtimeapi.VersionResponse{})
		if status.Code(err) != codes.Unimplemented {
			t.Errorf("got %v", err)
		}
	}
	counted(t, registry,
		`berth_rpc_duration_seconds_count{binary="",code="OK",handler="runc",rpc="RunPodSandbox"} 3`,
		`berth_rpc_duration_seconds_count{binary="",code="OK",handler="runc",rpc="StreamContainers"} 3`)
}

func TestCallsWithoutAHandler(t *testing.T) {
	conn, registry := served(t, func(context.Context) error { return errdefs.ErrInvalidArgument })
	for _, err := range ends(t, conn) {
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("got %v", err)
		}
	}
	counted(t, registry,
		`berth_rpc_duration_seconds_count{binary="",code="InvalidArgument",handler="",rpc="RunPodSandbox"} 1`,
		`berth_rpc_duration_seconds_count{binary="",code="InvalidArgument",handler="",rpc="StreamContainers"} 1`)
	SetHandler(t.Context(), "no call") // must not panic
}

// The caller gets no stack, and the next call is served.
func TestPanicsAreInternal(t *testing.T) {
	ctx, out := logTo(t)
	panicking := true
	conn, registry := served(t, func(ctx context.Context) error {
		SetHandler(ctx, "runc")
		if panicking {
			panic("the secret of the panic")
		}
		return nil
	}, loggingAs(ctx)...)
	for _, err := range ends(t, conn) {
		if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "please report it") {
			t.Errorf("got %v", err)
		}
	}
	counted(t, registry,
		`berth_rpc_duration_seconds_count{binary="",code="Internal",handler="runc",rpc="RunPodSandbox"} 1`,
		`berth_rpc_duration_seconds_count{binary="",code="Internal",handler="runc",rpc="StreamContainers"} 1`)
	panicking = false
	succeed(t, conn)
	for _, want := range []string{"the secret of the panic", "observe_test.go", "rpc=RunPodSandbox", "rpc=StreamContainers"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, out.String())
		}
	}
}

// If a call fails after its caller canceled it, an error without a class gets the code Canceled.
func TestACallThatTheCallerEnded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	conn, registry := served(t, func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		return errors.New("signal: killed")
	})
	_, err := runtimeapi.NewRuntimeServiceClient(conn).RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{})
	if status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
	counted(t, registry, `berth_rpc_duration_seconds_count{binary="",code="Canceled",handler="",rpc="RunPodSandbox"} 1`)
}
