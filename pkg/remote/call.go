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
	name      string
	conn      grpc.ClientConnInterface
	monitor   *monitor
	abilities atomic.Pointer[abilities]
	// via marks calls of this berth, so that it knows them if they come back.
	via string
}

// message is a pointer to a generated message.
type message[M any] interface {
	*M
	proto.Message
}

// pass passes a call on, and its answer back unread.
func pass[R any, P message[R]](ctx context.Context, c *caller, method string, req proto.Message) (P, error) {
	return carried[R, P](c.unary(ctx, method, req))
}

// passChange is pass for a call that changes something.
func passChange[R any, P message[R]](ctx context.Context, c *caller, method string, req proto.Message) (P, error) {
	return carried[R, P](c.lasting(ctx, method, req))
}

// read passes a call on whose answer has to be known.
func read[R any, P message[R]](ctx context.Context, c *caller, method string, req proto.Message) (P, error) {
	f, err := c.unary(ctx, method, req)
	return decoded[R, P](c, method, f, err)
}

// readChange is read for a call that changes something.
func readChange[R any, P message[R]](ctx context.Context, c *caller, method string, req proto.Message) (P, error) {
	f, err := c.lasting(ctx, method, req)
	return decoded[R, P](c, method, f, err)
}

// carried is an answer that is passed back unread.
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
		return nil, c.garbage(method)
	}
	return resp, nil
}

// unary makes one call while the daemon answers.
func (c *caller) unary(ctx context.Context, method string, req proto.Message) (wire.Frame, error) {
	era, err := c.monitor.admit(ctx)
	if err != nil {
		return nil, err
	}
	call, done := within(ctx, era)
	defer done()
	return c.take(ctx, era, method, c.invoke(call, method, req))
}

// answer is what came of a call.
type answer struct {
	wire.Frame
	header, trailer metadata.MD
	err             error
}

func (c *caller) invoke(ctx context.Context, method string, req proto.Message) (a answer) {
	a.err = c.conn.Invoke(c.outgoing(ctx), method, req, &a.Frame, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	return a
}

// take is an answer as the caller of the CRI gets it, whose context is ctx.
func (c *caller) take(ctx, era context.Context, method string, a answer) (wire.Frame, error) {
	relay(ctx, a.header, a.trailer)
	if a.err != nil {
		return nil, c.failed(era, a.err)
	}
	if !a.Valid() {
		return nil, c.garbage(method)
	}
	return a.Frame, nil
}

// stream passes on a call that is answered in several messages. It ends with the
// first error of each.
func (c *caller) stream(ctx context.Context, method string, req proto.Message, each func(wire.Frame) error) error {
	return c.exchange(ctx, method, req, func() (proto.Message, error) { return nil, io.EOF }, each)
}

// exchange passes on a call of any form of which nothing is known: requests as
// they come from more, answers as they come from the daemon, and what it sends
// along. It ends with the daemon's end of it, or with the first error of each.
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
	// An error of sending is the end of the call, which receiving tells.
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
			return c.garbage(method)
		}
		if err := each(f); err != nil {
			return err
		}
	}
}

// within is ctx, ended with the era.
func within(ctx, era context.Context) (context.Context, func()) {
	call, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(era, func() { cancel(context.Cause(era)) })
	return call, func() { stop(); cancel(nil) }
}

// failed is the error of a call. One that failed because the daemon is gone says
// so, and has the daemon looked at.
func (c *caller) failed(era context.Context, err error) error {
	if cause := context.Cause(era); cause != nil {
		return cause
	}
	st, _ := status.FromError(err)
	switch st.Code() {
	case codes.Unavailable:
		c.monitor.suspect()
	case codes.Unimplemented: // who is asked for something newer is to know who lacks it
	default:
		return err
	}
	p := st.Proto()
	p.Message = c.name + ": " + p.GetMessage()
	return status.ErrorProto(p)
}

func (c *caller) garbage(method string) error {
	return status.Errorf(codes.Internal, "%s: its response to %s is not a message of the CRI", c.name, method)
}

// nameless is the error of a call that has made something and does not say what.
func (c *caller) nameless(method string) error {
	return status.Errorf(codes.Internal, "%s: its response to %s has no ID", c.name, method)
}

// viaKey has the marks of the berths that a call came through.
const viaKey = "berth-via"

// outgoing is ctx with what the caller's client sent along, and this berth's mark.
func (c *caller) outgoing(ctx context.Context) context.Context {
	md, ok := metadata.FromIncomingContext(ctx) // a copy
	if !ok {
		md = metadata.MD{}
	}
	maps.DeleteFunc(md, func(key string, _ []string) bool { return !forwarded(key) })
	md[viaKey] = append(md[viaKey], c.via)
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		// The span of this berth's own part comes between the client's and the daemon's.
		propagation.TraceContext{}.Inject(ctx, carrier(md))
	}
	return metadata.NewOutgoingContext(ctx, md)
}

// carrier has a trace's context in metadata.
type carrier metadata.MD

func (c carrier) Get(key string) string { return strings.Join(metadata.MD(c).Get(key), ",") }

func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

func (c carrier) Keys() []string { return slices.Collect(maps.Keys(c)) }

// forwarded says whether a key is the client's, and not of its connection.
func forwarded(key string) bool {
	switch key {
	case "content-type", "user-agent", "te", "grpc-accept-encoding", "grpc-timeout", "grpc-encoding", behindKey, "":
		return false
	}
	return key[0] != ':'
}

// relay passes on what the daemon sent along. There is nobody to pass it to if
// the call is this berth's own.
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

// afterwards is how long a daemon that did not answer keeps a call whose caller
// was told so.
const afterwards = 2 * time.Minute

// lasting is unary for a call that changes something. If the daemon is taken to be
// down meanwhile, its caller gets the error, and the call stays open: canceling it
// would leave the change half done if the daemon resumes. A containerd whose start of a
// container is canceled can neither start nor remove it afterwards. The next list has the
// outcome of the call.
func (c *caller) lasting(ctx context.Context, method string, req proto.Message) (wire.Frame, error) {
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
		return c.take(ctx, era, method, a)
	case <-ctx.Done():
		cancel()
		return c.take(ctx, era, method, <-answered)
	case <-era.Done():
		time.AfterFunc(afterwards, cancel)
		return nil, context.Cause(era)
	}
}

// detached is ctx that does not end with it, but for its deadline.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	alone := context.WithoutCancel(ctx)
	if deadline, there := ctx.Deadline(); there {
		return context.WithDeadline(alone, deadline)
	}
	return context.WithCancel(alone)
}

// behindKey has the runs of berth that a daemon's answer may come from: its own,
// and those that its handlers lead to.
const behindKey = "berth-behind"

// leadsBack is why a daemon is no backend whose handlers lead to this berth.
const leadsBack = "it leads back to this berth, directly or through a handler of its own; change the handler's endpoint"
