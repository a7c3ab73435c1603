package remote

import (
	"context"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/wire"
)

// abilities remembers which calls a daemon does not know, or cannot answer because its
// list is too large for one message, and how it describes its metrics. A new connection
// has new ones: the daemon may have been replaced by a newer one.
type abilities struct {
	lacks sync.Map // of methods
	// metrics is nil before they were asked for.
	metrics atomic.Pointer[runtimeapi.ListMetricDescriptorsResponse]
}

func (a *abilities) has(method string) bool {
	_, lacks := a.lacks.Load(method)
	return !lacks
}

func (a *abilities) miss(method string) { a.lacks.Store(method, true) }

// listing is a list that the CRI has in two forms, of which a daemon may lack
// one. Requests and items of both are encoded alike.
type listing struct {
	unary, stream string
	shape         protoreflect.MessageDescriptor
}

func listingOf(unary, stream string, answer proto.Message) listing {
	return listing{unary, stream, answer.ProtoReflect().Descriptor()}
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
	able := c.abilities.Load()
	failed := status.Errorf(codes.Unimplemented, "%s supports neither %s nor %s", c.name, l.unary, l.stream)
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
	if err == nil {
		able.miss(l.unary) // it lacks that, or its list is too large for one message
	}
	return all, err
}

// maxList is how large a list may be that comes in pieces, in bytes: what a
// daemon sends without end must not fill the memory.
const maxList = 4 * maxMessage
