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

// methodSupport records a daemon's metric descriptors, and the methods that it lacks, or cannot
// answer because the list is too large for one message. A new connection starts without records,
// because a newer daemon may have replaced the old one.
type methodSupport struct {
	missing sync.Map // method → true
	// metrics is nil before the first answer.
	metrics atomic.Pointer[runtimeapi.ListMetricDescriptorsResponse]
}

func (a *methodSupport) has(method string) bool {
	_, lacks := a.missing.Load(method)
	return !lacks
}

func (a *methodSupport) markMissing(method string) { a.missing.Store(method, true) }

// listing is a list that the CRI has in a unary and a streaming form, one of which a daemon may
// lack. Both forms encode requests and items alike.
type listing struct {
	unary, stream string
	shape         protoreflect.MessageDescriptor
}

func listingOf(unary, stream string, answer proto.Message) listing {
	return listing{unary, stream, answer.ProtoReflect().Descriptor()}
}

// whole fetches a list, in one message if possible, or else as a stream. It tries each form once.
func (c *caller) whole(ctx context.Context, l listing, req proto.Message) (wire.Frame, error) {
	f, err := c.anyForm(ctx, l, req)
	if err == nil && !wire.WellFormed(f, l.shape) {
		return nil, c.malformed(l.unary)
	}
	return f, err
}

func (c *caller) anyForm(ctx context.Context, l listing, req proto.Message) (wire.Frame, error) {
	able := c.support.Load()
	failed := status.Errorf(codes.Unimplemented, "%s supports neither %s nor %s", c.name, l.unary, l.stream)
	if able.has(l.unary) {
		f, err := c.unary(ctx, l.unary, req)
		switch status.Code(err) {
		case codes.Unimplemented:
			able.markMissing(l.unary)
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
		able.markMissing(l.stream)
		return nil, failed
	}
	if err == nil {
		able.markMissing(l.unary) // missing, or its list is too large for one message
	}
	return all, err
}

// maxList bounds a streamed list, in bytes: an endless stream must not exhaust the memory.
const maxList = 4 * maxMessage
