package observe

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/internal/test"
)

// collector is an OTLP collector that keeps what it gets, undecoded.
func collector(t *testing.T) (address string, got <-chan string) {
	t.Helper()
	received := make(chan string, 16)
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		m := &emptypb.Empty{}
		if err := stream.RecvMsg(m); err != nil {
			return err
		}
		raw, err := proto.Marshal(m)
		if err != nil {
			return err
		}
		received <- string(raw)
		return stream.SendMsg(&emptypb.Empty{})
	}))
	l := test.Value((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		test.Check(t, <-done)
	})
	return l.Addr().String(), received
}

func TestSpansSayRPCAndHandler(t *testing.T) {
	address, got := collector(t)
	tracing := test.Value(StartTracing(t.Context(), TracingOptions{Endpoint: address, SampleRatio: 1, Insecure: true, Version: "1.2.3"}))(t)
	ended := tracetest.NewSpanRecorder()
	tracing.provider.RegisterSpanProcessor(ended)
	conn, registry := served(t, func(ctx context.Context) error {
		SetHandler(ctx, "gvisor")
		return nil
	}, tracing.ServerOptions()...)
	succeed(t, conn)
	counted(t, registry,
		`berth_rpc_duration_seconds_count{binary="",code="OK",handler="gvisor",rpc="RunPodSandbox"} 1`,
		`berth_rpc_duration_seconds_count{binary="",code="OK",handler="gvisor",rpc="StreamContainers"} 1`)
	// A span ends after the response of its call, and Close sends only spans that ended.
	test.Eventually(t, "both spans have ended", func() bool { return len(ended.Ended()) == 2 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	test.Must(t, tracing.Close(ctx))
	spans := <-got
	for _, want := range []string{"runtime.v1.RuntimeService/RunPodSandbox", "berth.handler", "gvisor", "service.version", "1.2.3"} {
		if !strings.Contains(spans, want) {
			t.Errorf("the spans lack %s: %q", want, spans)
		}
	}
}

// Without a collector, only the spans are lost: calls succeed and Close is fast.
func TestACollectorThatIsAway(t *testing.T) {
	tracing := test.Value(StartTracing(t.Context(), TracingOptions{Endpoint: "127.0.0.1:1", SampleRatio: 1, Insecure: true}))(t)
	conn, _ := served(t, func(context.Context) error { return nil }, tracing.ServerOptions()...)
	succeed(t, conn)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_ = tracing.Close(ctx) // the error reports the lost spans
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("closing took %s", took)
	}
}
