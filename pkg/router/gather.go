package router

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/berth-cri/berth/pkg/wire"
)

var errNoBackend = fmt.Errorf("no backends configured; see \"berth check\": %w", errdefs.ErrUnavailable)

// gather asks all backends at once and merges their answers in the backends' order. A single
// backend's answer is passed on without a copy. A backend that fails fails the call, because the
// kubelet would regard omitted pods as dead.
func gather[Q, R any](ctx context.Context, backends []Backend, req Q,
	call func(Backend, context.Context, Q) (R, error), merge func(all []R) R,
) (R, error) {
	switch len(backends) {
	case 0:
		return *new(R), errNoBackend
	case 1:
		return call(backends[0], ctx, req)
	}
	answers, err := askAll(ctx, backends, func(ctx context.Context, b Backend) (R, error) { return call(b, ctx, req) })
	if err != nil {
		return *new(R), err
	}
	return merge(answers), nil
}

// message is a pointer to a generated message.
type message[M any] interface {
	*M
	proto.Message
}

// concatenated merges lists: the items of all, in the order of the lists, and their unknown fields.
// Of any other field the last value counts.
func concatenated[R any, P message[R]](all []P) P {
	merged := P(new(R))
	to := merged.ProtoReflect()
	for _, a := range all {
		a.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
			if !f.IsList() {
				to.Set(f, v)
				return true
			}
			items := to.Mutable(f).List()
			for i := range v.List().Len() {
				items.Append(v.List().Get(i))
			}
			return true
		})
		addUnknown(merged, a)
	}
	return merged
}

// addUnknown appends the unknown fields of another message. In a decoded message these are the
// fields that are newer than berth's CRI. In an answer that a backend passes on undecoded, they are
// all fields; two encoded lists, one after the other, are one list.
func addUnknown(to, from proto.Message) {
	more, m := from.ProtoReflect().GetUnknown(), to.ProtoReflect()
	switch {
	case len(more) == 0:
	case len(m.GetUnknown()) == 0:
		m.SetUnknown(slices.Clip(more)) // shared: it is never changed
	default:
		m.SetUnknown(append(slices.Clip(m.GetUnknown()), more...))
	}
}

// askAll runs a call on each backend. The first failure cancels the others, and is returned with
// the name of its backend. A panic is raised again in the caller's goroutine, where it fails only
// this call; in the goroutine of the backend it would crash the daemon.
func askAll[R any](ctx context.Context, backends []Backend, call func(context.Context, Backend) (R, error)) ([]R, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make([]R, len(backends))
	var failed error
	var panicked any
	var fail sync.Once
	var asking sync.WaitGroup
	for i, b := range backends {
		asking.Go(func() {
			defer func() {
				if p := recover(); p != nil {
					fail.Do(func() { panicked = fmt.Sprintf("backend %q: %v\n%s", b.ID(), p, debug.Stack()) })
					cancel()
				}
			}()
			answer, err := call(ctx, b)
			if err != nil {
				fail.Do(func() { failed = prefixed(fmt.Sprintf("backend %q", b.ID()), err) })
				cancel()
				return
			}
			answers[i] = answer
		})
	}
	asking.Wait()
	if panicked != nil {
		panic(panicked)
	}
	if failed != nil {
		return nil, failed
	}
	return answers, nil
}

// messageSize is the size of each message of a streamed list, in bytes.
const messageSize = 1 << 20

// stream sends a list in several messages. The whole list is fetched first, so that the client
// never gets half of it. The unary and the streaming form have their items in the same field.
func stream[M any, P message[M]](list proto.Message, err error, to grpc.ServerStreamingServer[M]) error {
	if err != nil {
		return err
	}
	encoded, err := proto.Marshal(list)
	if err != nil {
		return err
	}
	for _, piece := range wire.Frame(encoded).Chunks(messageSize) {
		m := P(new(M))
		piece.Carry(m)
		if err := to.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// alike copies fields that are newer than berth's CRI from the request for one form of a list to
// the request for the other.
func alike[Q proto.Message](to Q, from proto.Message) Q {
	addUnknown(to, from)
	return to
}
