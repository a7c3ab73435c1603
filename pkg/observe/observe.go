// Package observe intercepts every RPC once and does what all calls share: it counts, times and
// logs the call, and turns a panic or an error into a gRPC status for the caller.
//
// The router sets the handler of a call (SetHandler). Traces and the /metrics endpoint are
// separate, and cost nothing when they are not configured.
package observe

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/step"
)

// Options configure an Observer. The zero value only logs and maps errors.
type Options struct {
	// Metrics registers the RPC metrics; nil counts nothing.
	Metrics prometheus.Registerer
	// Starts records pod starts; may be nil.
	Starts *Starts
}

// Observer provides the interceptors. Several servers may use it.
type Observer struct {
	api     api
	metrics *rpcMetrics
	calls   *prometheus.CounterVec // of containerd's API
	starts  *Starts
}

// New returns an Observer and registers its metrics. It panics if they are already registered,
// which is a bug.
func New(o Options) *Observer {
	observer := &Observer{api: cri, starts: o.Starts}
	if o.Metrics != nil {
		observer.metrics = newRPCMetrics(o.Metrics)
	}
	return observer
}

// ServerOptions returns the options of an observed server. Its interceptors must come first.
func (o *Observer) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(o.unary),
		grpc.ChainStreamInterceptor(o.stream),
	}
}

// call is the context of one RPC. It implements context.Context so that an RPC costs only one
// allocation here.
type call struct {
	context.Context
	// handler and binary are written by the goroutine that serves the call, and read by it after
	// the call.
	handler, binary string
	// steps are the parts of the call, named by the code that runs them.
	steps step.Recorder
}

type callKey struct{}

func (c *call) Value(key any) any {
	switch key {
	case callKey{}:
		return c
	case step.Key{}:
		return &c.steps
	}
	return c.Context.Value(key)
}

// SetHandler sets the handler for the RPC of ctx. Call it from the goroutine that serves the RPC,
// with the name of a Definition and never with a text of the request: the name becomes a metric's
// label.
func SetHandler(ctx context.Context, name string) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		c.handler = name
	}
}

// SetBinary sets the binary (handler.BinaryStable or BinaryCandidate) of the pod in the RPC of
// ctx, under the rules of SetHandler.
func SetBinary(ctx context.Context, binary string) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		c.binary = binary
	}
}

func (o *Observer) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (resp any, err error) {
	start := time.Now()
	c := &call{Context: ctx}
	rpc := o.api.name(info.FullMethod)
	func() {
		defer recoverPanic(ctx, rpc, &err)
		resp, err = serve(c, req)
	}()
	err = toStatus(ctx, rpc, err)
	took := time.Since(start)
	o.finish(c, rpc, req, resp, took, err)
	o.starts.note(c, rpc, req, resp, start, took, err)
	return resp, err
}

func (o *Observer) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, serve grpc.StreamHandler) (err error) {
	start := time.Now()
	ctx := ss.Context()
	c := &call{Context: ctx}
	rpc := o.api.name(info.FullMethod)
	func() {
		defer recoverPanic(ctx, rpc, &err)
		err = serve(srv, &observedStream{ss, c})
	}()
	err = toStatus(ctx, rpc, err)
	o.finish(c, rpc, nil, nil, time.Since(start), err)
	return err
}

// observedStream is a stream with the call's context.
type observedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *observedStream) Context() context.Context { return s.ctx }

func (o *Observer) finish(c *call, rpc string, req, resp any, took time.Duration, err error) {
	if o.metrics != nil {
		o.metrics.observe(rpc, c.handler, c.binary, err, took)
		for _, s := range c.steps.Steps() {
			o.metrics.steps.WithLabelValues(label(rpc), c.handler, s.Name).Observe(s.Took.Seconds())
		}
	}
	if o.calls != nil {
		o.calls.WithLabelValues(rpc, status.Code(err).String()).Inc()
	}
	if span := trace.SpanFromContext(c.Context); c.handler != "" && span.IsRecording() {
		span.SetAttributes(attribute.String("berth.handler", c.handler))
	}
	o.api.logCall(c.Context, rpc, c.handler, req, resp, took, err)
}

// method returns the last part of "/runtime.v1.RuntimeService/Version".
func method(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

// recoverPanic turns a panic into an error of its call, because the daemon must go on to serve the
// node's pods. The stack goes to the log, not to the caller.
func recoverPanic(ctx context.Context, rpc string, err *error) {
	p := recover()
	if p == nil {
		return
	}
	log.G(ctx).WithFields(log.Fields{"rpc": rpc, "panic": fmt.Sprint(p), "stack": string(debug.Stack())}).
		Error("Call panicked; please report this with the stack")
	*err = status.Errorf(codes.Internal, "%s failed because of a bug in berth; please report it with the stack in berth's log", rpc)
}

// known are the calls of this CRI version, by method name. Others may be passed on to a backend
// that supports them.
var known = func() map[string]bool {
	all := map[string]bool{}
	for _, service := range []grpc.ServiceDesc{runtimeapi.RuntimeService_ServiceDesc, runtimeapi.ImageService_ServiceDesc} {
		for _, m := range service.Methods {
			all[m.MethodName] = true
		}
		for _, s := range service.Streams {
			all[s.StreamName] = true
		}
	}
	return all
}()

// otherRPC is the metric label of unknown calls: a client may use any name.
const otherRPC = "other"

// label returns a call's name in metrics.
func label(rpc string) string {
	if known[rpc] {
		return rpc
	}
	return otherRPC
}
