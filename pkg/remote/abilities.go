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

	"github.com/berth-cri/berth/pkg/remote/wire"
)

// abilities remembers which calls a daemon does not know, and how it describes its metrics. A new
// connection has new ones: the daemon may have been replaced by a newer one.
type abilities struct {
	mu    sync.Mutex
	lacks map[string]bool
	// metrics is nil before it was asked for.
	metrics *runtimeapi.ListMetricDescriptorsResponse
}

func (a *abilities) has(method string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !a.lacks[method]
}

func (a *abilities) miss(method string) {
	a.mu.Lock()
	defer a.mu.Unlock()
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

func (a *abilities) describe(m *runtimeapi.ListMetricDescriptorsResponse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.metrics = m
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
func (c *caller) whole(ctx context.Context, l listing, req proto.Message) (wire.Frame, error) {
	f, err := c.anyForm(ctx, l, req)
	if err == nil && !wire.Sound(f, l.shape) {
		return nil, c.garbage(l.unary)
	}
	return f, err
}

func (c *caller) anyForm(ctx context.Context, l listing, req proto.Message) (wire.Frame, error) {
	failed, able := l.errMissing(c), c.abilities.Load()
	if able.has(l.unary) {
		f, err := c.unary(ctx, l.unary, req)
		switch status.Code(err) {
		case codes.Unimplemented:
			able.miss(l.unary)
		case codes.ResourceExhausted:
		default:
			return f, err
		}
		failed = err
	}
	if !able.has(l.stream) {
		return nil, failed
	}
	var all wire.Frame
	err := c.stream(ctx, l.stream, req, func(f wire.Frame) error {
		if len(all)+len(f) > maxList {
			return status.Errorf(codes.ResourceExhausted, "%s: its list is larger than %d MiB", c.name, maxList>>20)
		}
		all = append(all, f...)
		return nil
	})
	if status.Code(err) == codes.Unimplemented {
		able.miss(l.stream)
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
func (c *caller) pieces(ctx context.Context, l listing, req proto.Message, each func(wire.Frame) error) error {
	able := c.abilities.Load()
	if able.has(l.stream) {
		sent := false
		err := c.stream(ctx, l.stream, req, func(f wire.Frame) error {
			if sent = true; !wire.Sound(f, l.shape) {
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
		able.miss(l.stream)
	}
	if !able.has(l.unary) {
		return l.errMissing(c)
	}
	f, err := c.unary(ctx, l.unary, req)
	if err != nil {
		if status.Code(err) == codes.Unimplemented {
			able.miss(l.unary)
		}
		return err
	}
	if !wire.Sound(f, l.shape) {
		return c.garbage(l.unary)
	}
	for _, piece := range f.Chunks(chunk) {
		if err := each(piece); err != nil {
			return err
		}
	}
	return nil
}

// clientError is an error of who is answered, not of who was asked.
type clientError struct{ error }
