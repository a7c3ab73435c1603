// Package observe sees every RPC once, in one interceptor pair, and does there
// what must not be written forty times: count and time it, log it, turn a panic
// into an answer, and turn any error into a gRPC status that its caller
// understands.
//
// The router tells the interceptor which handler a call went to (SetHandler).
// Traces and the /metrics endpoint are separate, and cost nothing when they are
// not configured.
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

// Options configure an Observer. The zero value logs and maps errors only.
type Options struct {
	// Metrics takes the RPC metrics; nil counts nothing.
	Metrics prometheus.Registerer
	// Starts remembers how pods came up; nil remembers nothing.
	Starts *Starts
}

// Observer makes the interceptors. It may be used by several servers.
type Observer struct {
	api     api
	metrics *rpcMetrics
	calls   *prometheus.CounterVec // of containerd's API
	starts  *Starts
}

// New makes an Observer and registers its metrics. It panics if they are
// registered already, which is a mistake in the program.
func New(o Options) *Observer {
	observer := &Observer{api: cri, starts: o.Starts}
	if o.Metrics != nil {
		observer.metrics = newRPCMetrics(o.Metrics)
	}
	return observer
}

// ServerOptions are the options of a server whose calls are to be observed. No
// other interceptor may come before these.
func (o *Observer) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(o.unary),
		grpc.ChainStreamInterceptor(o.stream),
	}
}

// call is the context of one RPC. It is a context itself so that an RPC costs
// one allocation here.
type call struct {
	context.Context
	// handler and binary are written by the goroutine that serves the call, and
	// read by it when the call is over.
	handler, binary string
	// steps are the parts of the call, which those who do them name.
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

// SetHandler says which handler the RPC of ctx was routed to. Call it from the
// goroutine that serves the RPC, with the name of a Definition and never with
// what a request says: the name becomes a metric's label.
func SetHandler(ctx context.Context, name string) {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		c.handler = name
	}
}

// SetBinary sets the binary of its handler (handler.BinaryStable or
// BinaryCandidate) the pod has that the RPC of ctx is about, as SetHandler does.
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

// observedStream gives a stream the call's context.
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

// method is the last part of "/runtime.v1.RuntimeService/Version".
func method(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

// recoverPanic makes a panic the answer of the one call that caused it: the
// daemon serves every pod of the node. The caller gets no stack, the log does.
func recoverPanic(ctx context.Context, rpc string, err *error) {
	p := recover()
	if p == nil {
		return
	}
	log.G(ctx).WithFields(log.Fields{"rpc": rpc, "panic": fmt.Sprint(p), "stack": string(debug.Stack())}).
		Error("Call panicked; please report this with the stack")
	*err = status.Errorf(codes.Internal, "%s failed because of a bug in berth; please report it with the stack in berth's log", rpc)
}

// known are the calls of this CRI, by the last part of their names. Others may
// be passed on to a backend that has them.
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

// otherRPC is what metrics call the calls that this CRI does not have: a client
// may make up any name.
const otherRPC = "other"

// label is a call's name in metrics.
func label(rpc string) string {
	if known[rpc] {
		return rpc
	}
	return otherRPC
}
