package remote

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berth-cri/berth/pkg/wire"
)

// caller passes calls on to one daemon.
type caller struct {
	name    string
	conn    grpc.ClientConnInterface
	monitor *monitor
	support atomic.Pointer[methodSupport]
	// via is the Instance of this berth; it marks this berth's calls, see viaKey.
	via string
}

// message is a pointer to a generated message.
type message[M any] interface {
	*M
	proto.Message
}

// pass forwards a call and returns its answer undecoded.
func pass[R any, P message[R]](ctx context.Context, c *caller, method string, req proto.Message) (P, error) {
	return carried[R, P](c.unary(ctx, method, req))
}

// passChange is pass for a call that changes something.
func passChange[R any, P message[R]](ctx context.Context, c *caller, method string, req proto.Message) (P, error) {
	return carried[R, P](c.unaryChange(ctx, method, req))
}

// read forwards a call and decodes its answer.
func read[R any, P message[R]](ctx context.Context, c *caller, method string, req proto.Message) (P, error) {
	f, err := c.unary(ctx, method, req)
	return decoded[R, P](c, method, f, err)
}

// readChange is read for a call that changes something.
func readChange[R any, P message[R]](ctx context.Context, c *caller, method string, req proto.Message) (P, error) {
	f, err := c.unaryChange(ctx, method, req)
	return decoded[R, P](c, method, f, err)
}

// carried returns a message with the encoded answer as its unknown fields.
func carried[R any, P message[R]](f wire.Frame, err error) (P, error) {
	if err != nil {
		return nil, err
	}
	resp := P(new(R))
	f.Carry(resp)
	return resp, nil
}

func decoded[R any, P message[R]](c *caller, method string, f wire.Frame, err error) (P, error) {
	if err != nil {
		return nil, err
	}
	resp := P(new(R))
	if err := proto.Unmarshal(f, resp); err != nil {
		return nil, c.malformed(method)
	}
	return resp, nil
}

// unary makes one call if the daemon is not down.
func (c *caller) unary(ctx context.Context, method string, req proto.Message) (wire.Frame, error) {
	era, err := c.monitor.admit(ctx)
	if err != nil {
		return nil, err
	}
	call, done := within(ctx, era)
	defer done()
	return c.result(ctx, era, method, c.invoke(call, method, req))
}

// answer is the result of a call.
type answer struct {
	wire.Frame
	header, trailer metadata.MD
	err             error
}

func (c *caller) invoke(ctx context.Context, method string, req proto.Message) (a answer) {
	a.err = c.conn.Invoke(c.outgoing(ctx), method, req, &a.Frame, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	return a
}

// result returns an answer for the client of the CRI, and relays its metadata; ctx is the client's.
func (c *caller) result(ctx, era context.Context, method string, a answer) (wire.Frame, error) {
	relay(ctx, a.header, a.trailer)
	if a.err != nil {
		return nil, c.failed(era, a.err)
	}
	if !a.Valid() {
		return nil, c.malformed(method)
	}
	return a.Frame, nil
}

// stream forwards a call with a stream of answers. It ends with the first error of each().
func (c *caller) stream(ctx context.Context, method string, req proto.Message, each func(wire.Frame) error) error {
	return c.exchange(ctx, method, req, func() (proto.Message, error) { return nil, io.EOF }, each)
}

// exchange forwards a call of unknown form: the request first, then those that more() returns, and
// the daemon's answers, headers and trailers. It ends when the daemon ends the call, or with the
// first error of each().
func (c *caller) exchange(ctx context.Context, method string, first proto.Message, more func() (proto.Message, error), each func(wire.Frame) error) error {
	era, err := c.monitor.admit(ctx)
	if err != nil {
		return err
	}
	call, done := within(ctx, era)
	defer done()
	stream, err := c.conn.NewStream(c.outgoing(call), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return c.failed(era, err)
	}
	// A failed send ends the call; RecvMsg returns the error.
	go func() {
		m, err := first, error(nil)
		for ; err == nil; m, err = more() {
			if stream.SendMsg(m) != nil {
				return
			}
		}
		if errors.Is(err, io.EOF) {
			_ = stream.CloseSend()
			return
		}
		done()
	}()
	for begun := false; ; begun = true {
		var f wire.Frame
		err := stream.RecvMsg(&f)
		if !begun {
			header, _ := stream.Header()
			relay(ctx, header, nil)
		}
		if err != nil {
			relay(ctx, nil, stream.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return c.failed(era, err)
		}
		if !f.Valid() {
			return c.malformed(method)
		}
		if err := each(f); err != nil {
			return err
		}
	}
}

// within returns a copy of ctx that also ends with the era.
func within(ctx, era context.Context) (context.Context, func()) {
	call, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(era, func() { cancel(context.Cause(era)) })
	return call, func() { stop(); cancel(nil) }
}

// failed returns a failed call's error for the client: the daemon's, or the reason of an outage
// that began during the call. The code Unavailable triggers a check.
func (c *caller) failed(era context.Context, err error) error {
	if cause := context.Cause(era); cause != nil {
		return cause
	}
	st, _ := status.FromError(err)
	switch st.Code() {
	case codes.Unavailable:
		c.monitor.suspect()
	case codes.Unimplemented: // the error names the daemon that lacks the method
	default:
		return err
	}
	p := st.Proto()
	p.Message = c.name + ": " + p.GetMessage()
	return status.ErrorProto(p)
}

func (c *caller) malformed(method string) error {
	return status.Errorf(codes.Internal, "%s: its response to %s is not a message of the CRI", c.name, method)
}

// missingID is the error of a call that created an object and returned no ID.
func (c *caller) missingID(method string) error {
	return status.Errorf(codes.Internal, "%s: its response to %s has no ID", c.name, method)
}

// viaKey is the metadata key with the instances of berth that a call came through.
const viaKey = "berth-via"

// outgoing returns ctx with the client's metadata and this berth's mark.
func (c *caller) outgoing(ctx context.Context) context.Context {
	md, ok := metadata.FromIncomingContext(ctx) // a copy
	if !ok {
		md = metadata.MD{}
	}
	maps.DeleteFunc(md, func(key string, _ []string) bool { return !forwarded(key) })
	md[viaKey] = append(md[viaKey], c.via)
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		// This berth's span is the parent of the daemon's.
		propagation.TraceContext{}.Inject(ctx, carrier(md))
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// carrier adapts metadata to the propagation of traces.
type carrier metadata.MD

func (c carrier) Get(key string) string { return strings.Join(metadata.MD(c).Get(key), ",") }

func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

func (c carrier) Keys() []string { return slices.Collect(maps.Keys(c)) }

// forwarded reports whether a metadata key belongs to the client, not to its connection.
func forwarded(key string) bool {
	switch key {
	case "content-type", "user-agent", "te", "grpc-accept-encoding", "grpc-timeout", "grpc-encoding", behindKey, "":
		return false
	}
	return key[0] != ':'
}

// relay passes the daemon's metadata on. This berth's own calls have no client to pass it to.
func relay(ctx context.Context, header, trailer metadata.MD) {
	if grpc.ServerTransportStreamFromContext(ctx) == nil {
		return
	}
	if h := own(header); h != nil {
		_ = grpc.SetHeader(ctx, h) // the client may be gone
	}
	if t := own(trailer); t != nil {
		_ = grpc.SetTrailer(ctx, t)
	}
}

func own(md metadata.MD) metadata.MD {
	var kept metadata.MD
	for key, values := range md {
		if forwarded(key) {
			if kept == nil {
				kept = metadata.MD{}
			}
			kept[key] = values
		}
	}
	return kept
}

// lateCallTimeout is how long a call to an unresponsive daemon stays open after its client got an
// error.
const lateCallTimeout = 2 * time.Minute

// unaryChange is unary for a call that changes something. If the daemon goes down during the call,
// the client gets an error, but the call stays open: cancelling it would leave the change half done
// if the daemon resumes. For example, after a cancelled start containerd can neither start nor
// remove the container. The next list shows the outcome.
func (c *caller) unaryChange(ctx context.Context, method string, req proto.Message) (wire.Frame, error) {
	era, err := c.monitor.admit(ctx)
	if err != nil {
		return nil, err
	}
	call, cancel := detached(ctx)
	answered := make(chan answer, 1)
	go func() {
		defer cancel()
		answered <- c.invoke(call, method, req)
	}()
	select {
	case a := <-answered:
		return c.result(ctx, era, method, a)
	case <-ctx.Done():
		cancel()
		return c.result(ctx, era, method, <-answered)
	case <-era.Done():
		time.AfterFunc(lateCallTimeout, cancel)
		return nil, context.Cause(era)
	}
}

// detached returns a context with the values and deadline of ctx, without its cancellation.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	alone := context.WithoutCancel(ctx)
	if deadline, there := ctx.Deadline(); there {
		return context.WithDeadline(alone, deadline)
	}
	return context.WithCancel(alone)
}

// behindKey is the metadata key with the instances of berth behind a socket: the daemon's own, and
// those that its handlers lead to.
const behindKey = "berth-behind"

// leadsBack is the reason if a daemon is this berth, or has a handler that leads to this berth.
const leadsBack = "it leads back to this berth, directly or through a handler of its own; change the handler's endpoint"
