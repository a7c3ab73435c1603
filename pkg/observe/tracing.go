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

// TracingOptions say where spans go.
type TracingOptions struct {
	// Endpoint is host:port of an OTLP/gRPC collector. Required.
	Endpoint string
	// SampleRatio, 0 to 1, is the share of the traces begun here that are
	// recorded. A trace that the caller began is recorded if the caller says so.
	SampleRatio float64
	// Insecure talks to the collector without TLS.
	Insecure bool
	// Version is the daemon's.
	Version string
}

// Tracing makes a span of every RPC and sends it to a collector.
type Tracing struct {
	provider *sdktrace.TracerProvider
}

// StartTracing starts the exporter. A collector that cannot be reached is no
// error: spans wait, and are dropped when too many do.
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

// ServerOptions are the options of a server whose calls are to be traced.
func (t *Tracing) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.StatsHandler(otelgrpc.NewServerHandler(
		otelgrpc.WithTracerProvider(t.provider),
		otelgrpc.WithPropagators(propagation.TraceContext{}),
	))}
}

// Close sends what is waiting, for as long as ctx allows.
func (t *Tracing) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }
