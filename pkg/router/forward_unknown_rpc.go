package router

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/pkg/observe"
	"github.com/berth-cri/berth/pkg/wire"
)

// Forwarder is a Backend that can pass on a call that berth's CRI does not have.
type Forwarder interface {
	// Forward makes the call. It sends the request first, then those that more() returns until its
	// error, which is io.EOF after the last request. It passes each answer undecoded to send().
	// more() may still wait when Forward returns, and must return when the client's call ends.
	Forward(ctx context.Context, method string, first proto.Message, more func() (proto.Message, error), send func(proto.Message) error) error
}

// unknownRPCs routes calls that berth's CRI does not have.
type unknownRPCs struct {
	routes routes
	owners *owners
}

// serve passes on methods and services of newer versions of the CRI. A call with the ID of a
// sandbox or container in its first request goes to the owner, any other call to the default
// handler's backend. If that backend cannot pass it on, the answer is Unimplemented.
func (n unknownRPCs) serve(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	missing := status.Errorf(codes.Unimplemented, "unknown method %s", method)
	if !strings.HasPrefix(method, "/runtime.v") {
		return missing
	}
	receive := func() (proto.Message, error) {
		m := &emptypb.Empty{} // all fields are unknown to it
		return m, stream.RecvMsg(m)
	}
	first, err := receive()
	if err != nil {
		return err
	}
	name, to := "", n.routes.standard().Backend
	owner, err := n.owners.mentioned(first)
	switch {
	case err != nil:
		return err
	case owner != nil:
		name, to = owner.Handler, owner.Backend
		observe.SetHandler(stream.Context(), name)
	}
	f, ok := to.(Forwarder)
	if !ok {
		return named(name, missing)
	}
	return named(name, f.Forward(stream.Context(), method, first, receive, func(m proto.Message) error { return stream.SendMsg(m) }))
}

// mentioned returns the owner of the first ID in a message: a full ID anywhere, or else a unique
// prefix in field 1, where requests of the CRI have their ID.
func (o *owners) mentioned(m proto.Message) (*Owner, error) {
	message := []byte(m.ProtoReflect().GetUnknown())
	owner, missed := o.withFullID(message, idDepth)
	if owner == nil && missed && len(o.all()) > 1 {
		o.refreshes.run(o)
		owner, _ = o.withFullID(message, idDepth)
	}
	if owner != nil {
		return owner, nil
	}
	for f := range wire.Fields(message) {
		if f.Number == 1 && len(f.Content) < fullID && isShortID(string(f.Content)) {
			if owner, err := o.byPrefix(string(f.Content)); owner != nil || err != nil {
				return owner, err
			}
		}
	}
	return nil, nil
}

// idDepth is how many levels of nested messages are searched for IDs.
const idDepth = 4

// maxID is the longest text that is looked up as an ID, in bytes.
const maxID = 256

// withFullID returns the owner of the first full ID in a message. missed is set if a text looks
// like an ID and is unknown.
func (o *owners) withFullID(message []byte, depth int) (owner *Owner, missed bool) {
	for f := range wire.Fields(message) {
		if len(f.Content) == 0 || len(f.Content) > maxID {
			continue
		}
		id := string(f.Content)
		if owner = o.containers.get(id); owner == nil {
			owner = o.sandboxes.get(id)
		}
		if owner != nil {
			return owner, missed
		}
		missed = missed || len(id) == fullID && isHex(id)
	}
	if depth == 0 {
		return nil, missed
	}
	for f := range wire.Fields(message) {
		found, inside := o.withFullID(f.Content, depth-1)
		if missed = missed || inside; found != nil {
			return found, missed
		}
	}
	return nil, missed
}

// minShortID is the shortest ID prefix that is accepted in a message of unknown type.
const minShortID = 6

func isShortID(s string) bool {
	return len(s) >= minShortID && isHex(s)
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
