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

// Forwarder is a Backend that can pass on a call that this CRI does not have.
type Forwarder interface {
	// Forward makes the call with the request first and all that more returns
	// until its error, which is io.EOF at the end, and hands on each message of
	// the answer unread. more may still be waiting when Forward returns, and must
	// then end with the call that it belongs to.
	Forward(ctx context.Context, method string, first proto.Message, more func() (proto.Message, error), send func(proto.Message) error) error
}

// newer routes what this CRI does not have.
type newer struct {
	routes routes
	owners *owners
}

// serve serves the methods and services of the CRI that are newer than this
// one. A call that has the id of a sandbox or container in its first request
// goes to its owner, any other to the default handler's backend; Unimplemented
// if that cannot pass it on.
func (n newer) serve(_ any, stream grpc.ServerStream) error {
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

// mentioned is the owner of the first id in a message: of a full one anywhere,
// else of the unique beginning of one where ids are in the requests of the CRI.
func (o *owners) mentioned(m proto.Message) (*Owner, error) {
	message := []byte(m.ProtoReflect().GetUnknown())
	owner, missed := o.named(message, idDepth)
	if owner == nil && missed && len(o.all()) > 1 {
		o.again.ask(o)
		owner, _ = o.named(message, idDepth)
	}
	if owner != nil {
		return owner, nil
	}
	for f := range wire.Fields(message) {
		if f.Number == 1 && len(f.Content) < fullID && isShortID(string(f.Content)) {
			if owner, err := o.begun(string(f.Content)); owner != nil || err != nil {
				return owner, err
			}
		}
	}
	return nil, nil
}

// idDepth is how deep in a message ids are looked for.
const idDepth = 4

// maxID is how long a text may be that is taken for an id, in bytes.
const maxID = 256

// named is the owner of the first full id in a message. missed says that there
// is what looks like one and nobody is known to have.
func (o *owners) named(message []byte, depth int) (owner *Owner, missed bool) {
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
		found, inside := o.named(f.Content, depth-1)
		if missed = missed || inside; found != nil {
			return found, missed
		}
	}
	return nil, missed
}

// minShortID is how much of an id has to be there to be taken for one where it
// is not known to be one.
const minShortID = 6

func isShortID(s string) bool {
	return len(s) >= minShortID && isHex(s)
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
