package remote

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// abilities remembers which calls a daemon does not know, and how it describes
// its metrics, until it is connected to anew: it may have been replaced by a
// newer one.
type abilities struct {
	mu    sync.Mutex
	lacks map[string]bool
	// metrics is nil before it was asked for.
	metrics *runtimeapi.ListMetricDescriptorsResponse
	// number is that of the connection.
	number uint64
}

// connection is the number of the connection that a call may be made on. What
// the call tells of the daemon is worth nothing once there is another.
func (a *abilities) connection() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.number
}

func (a *abilities) has(method string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.lacks[method]
}

func (a *abilities) miss(method string, on uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if on != a.number {
		return
	}
	if a.lacks == nil {
		a.lacks = map[string]bool{}
	}
	a.lacks[method] = true
}

// described are the descriptors that the daemon has named, or nil. They are shared.
func (a *abilities) described() *runtimeapi.ListMetricDescriptorsResponse {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.metrics
}

func (a *abilities) describe(m *runtimeapi.ListMetricDescriptorsResponse, on uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if on == a.number {
		a.metrics = m
	}
}

func (a *abilities) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lacks, a.metrics = nil, nil
	a.number++
}

// listing is a list that the CRI has in two forms, of which a daemon may lack
// one. Requests and items of both are encoded alike.
type listing struct {
	unary, stream string
	shape         protoreflect.MessageDescriptor
}

func listingOf(unary, stream string, answer proto.Message) listing {
	return listing{unary, stream, answer.ProtoReflect().Descriptor()}
}

// errMissing is told once it is known that there is neither form.
func (l listing) errMissing(c *caller) error {
	return status.Errorf(codes.Unimplemented, "%s supports neither %s nor %s", c.name, l.unary, l.stream)
}

// whole asks for a list in one message, or in several if the daemon has it so
// only or if it does not fit into one. Each form is tried once at most.
func (c *caller) whole(ctx context.Context, l listing, req proto.Message) (frame, error) {
	f, err := c.anyForm(ctx, l, req)
	if err == nil && !sound(f, l.shape) {
		return nil, c.garbage(l.unary)
	}
	return f, err
}

func (c *caller) anyForm(ctx context.Context, l listing, req proto.Message) (frame, error) {
	failed, on := l.errMissing(c), c.abilities.connection()
	if c.abilities.has(l.unary) {
		f, err := c.unary(ctx, l.unary, req)
		switch status.Code(err) {
		case codes.Unimplemented:
			c.abilities.miss(l.unary, on)
		case codes.ResourceExhausted:
		default:
			return f, err
		}
		failed = err
	}
	if !c.abilities.has(l.stream) {
		return nil, failed
	}
	var all frame
	err := c.stream(ctx, l.stream, req, func(f frame) error {
		if len(all)+len(f) > maxList {
			return status.Errorf(codes.ResourceExhausted, "%s: its list is larger than %d MiB", c.name, maxList>>20)
		}
		all = append(all, f...)
		return nil
	})
	if status.Code(err) == codes.Unimplemented {
		c.abilities.miss(l.stream, on)
		return nil, failed
	}
	return all, err
}

// maxList is how large a list may be that comes in pieces, in bytes: what a
// daemon sends without end must not fill the memory.
const maxList = 4 * maxMessage

// chunk is how large the pieces of a list are that was not in pieces, in bytes.
const chunk = 1 << 20

// pieces asks for a list in several messages, or cuts one up.
func (c *caller) pieces(ctx context.Context, l listing, req proto.Message, each func(frame) error) error {
	on := c.abilities.connection()
	if c.abilities.has(l.stream) {
		sent := false
		err := c.stream(ctx, l.stream, req, func(f frame) error {
			if sent = true; !sound(f, l.shape) {
				return c.garbage(l.stream)
			}
			if err := each(f); err != nil {
				return &clientError{err}
			}
			return nil
		})
		var gone *clientError
		if errors.As(err, &gone) {
			return gone.error
		}
		if sent || status.Code(err) != codes.Unimplemented {
			return err
		}
		c.abilities.miss(l.stream, on)
	}
	if !c.abilities.has(l.unary) {
		return l.errMissing(c)
	}
	f, err := c.unary(ctx, l.unary, req)
	if err != nil {
		if status.Code(err) == codes.Unimplemented {
			c.abilities.miss(l.unary, on)
		}
		return err
	}
	if !sound(f, l.shape) {
		return c.garbage(l.unary)
	}
	for _, piece := range f.chunks(chunk) {
		if err := each(piece); err != nil {
			return err
		}
	}
	return nil
}

// clientError is an error of who is answered, not of who was asked.
type clientError struct{ error }
