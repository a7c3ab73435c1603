package observe

import (
	"context"
	"fmt"

	"github.com/containerd/log"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
)

// TracingOptions configure the export of spans.
type TracingOptions struct {
	// Endpoint is host:port of an OTLP/gRPC collector. Required.
	Endpoint string
	// SampleRatio, 0 to 1, is the recorded share of traces begun here. For a trace begun by the
	// caller, the caller's sampling flag decides.
	SampleRatio float64
	// Insecure connects to the collector without TLS.
	Insecure bool
	// Version is the daemon's.
	Version string
}

// Tracing creates a span for every RPC and exports it to a collector.
type Tracing struct {
	provider *sdktrace.TracerProvider
}

// StartTracing starts the exporter. An unreachable collector is not an error: spans are queued, and
// dropped when the queue is full.
func StartTracing(ctx context.Context, o TracingOptions) (*Tracing, error) {
	exporterOptions := []otlptracegrpc.Option{otlptracegrpc.WithEndpoint(o.Endpoint)}
	if o.Insecure {
		exporterOptions = append(exporterOptions, otlptracegrpc.WithInsecure())
	}
	exporter, err := otlptracegrpc.New(ctx, exporterOptions...)
	if err != nil {
		return nil, fmt.Errorf("tracing to %q: %w", o.Endpoint, err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.G(ctx).WithError(err).Debug("Failed to export spans")
	}))
	return &Tracing{provider: sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(o.SampleRatio))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "berth"),
			attribute.String("service.version", o.Version),
		)),
	)}, nil
}

// ServerOptions returns the options of a traced server.
func (t *Tracing) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	))}
}

// Close exports the queued spans, until ctx ends.
func (t *Tracing) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }
