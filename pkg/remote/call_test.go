package remote

import (
	"context"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/wire"
)

// CRI-O's socket also serves other protocols, and accepts gRPC only as "application/grpc".
func TestContentType(t *testing.T) {
	d := newDaemon(t)
	b := ready(t, d)
	test.Check(t, b.lists.stream(legacy(t), sandboxLists.stream, &runtimeapi.StreamPodSandboxesRequest{}, func(wire.Frame) error { return nil }))
	test.Fails(t, face(t, b).Invoke(t.Context(), newest, &emptypb.Empty{}, &emptypb.Empty{}), "a call that the daemon does not have succeeded")
	calls := d.heard()
	for _, method := range []string{runtimeapi.RuntimeService_Status_FullMethodName, sandboxLists.unary, sandboxLists.stream, newest} {
		if !slices.ContainsFunc(calls, func(c call) bool { return c.method == method }) {
			t.Errorf("%s was not called", method)
		}
	}
	for _, c := range calls {
		test.EqualLists(t, c.method+": content type", c.sent.Get("content-type"), []string{"application/grpc"})
	}
}

// A daemon's errors keep their code, text and details. Unavailable and Unimplemented get a
// prefix that names the daemon.
func TestErrorsOfADaemon(t *testing.T) {
	const text = "the daemon's words"
	d := newDaemon(t)
	b := ready(t, d)
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		fails := test.Value(status.New(code, text).WithDetails(wrapperspb.String("a detail")))(t)
		before := func(_ context.Context, method string) error {
			if method == runtimeapi.RuntimeService_StartContainer_FullMethodName {
				return fails.Err()
			}
			return nil
		}
		d.before.Store(&before)
		_, err := b.StartContainer(legacy(t), &runtimeapi.StartContainerRequest{ContainerId: "x"})
		got, want := status.Convert(err), text
		if code == codes.Unavailable || code == codes.Unimplemented {
			want = "the CRI daemon at " + d.path + ": " + text
		}
		if got.Code() != code || got.Message() != want || len(got.Details()) != 1 {
			t.Errorf("%s: got %v with %v, want %q with one detail", code, err, got.Details(), want)
		}
	}
}

// The parent of a daemon's span is berth's span, or else the client's.
func TestTraceContext(t *testing.T) {
	c := &caller{via: "me"}
	const clients = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", clients, "tracestate", "k=v"))
	sent := func(key string) string {
		md, _ := metadata.FromOutgoingContext(c.outgoing(ctx))
		if got := md.Get(key); len(got) == 1 {
			return got[0]
		}
		return ""
	}
	if sent("traceparent") != clients || sent("tracestate") != "k=v" {
		t.Errorf("without a span of berth: %q, %q", sent("traceparent"), sent("tracestate"))
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
	test.Equal(t, "with a span of berth", sent("traceparent"), "00-01000000000000000000000000000000-0200000000000000-01")
	if from, _ := metadata.FromIncomingContext(ctx); from.Get("traceparent")[0] != clients {
		t.Error("the client's metadata was changed")
	}
}
