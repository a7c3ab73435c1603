package remote

import (
	"testing"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"

	"github.com/berth-cri/berth/internal/test"
)

// A daemon's span is inside of berth's own, if it has one, else inside of the client's.
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
		t.Errorf("without a span of its own: %q, %q", sent("traceparent"), sent("tracestate"))
	}
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	}))
	test.Equal(t, "with a span of its own", sent("traceparent"), "00-01000000000000000000000000000000-0200000000000000-01")
	if from, _ := metadata.FromIncomingContext(ctx); from.Get("traceparent")[0] != clients {
		t.Error("the client's metadata was changed")
	}
}
