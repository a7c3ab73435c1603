package router

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/pkg/observe"
)

// Forwarder is a Backend that can pass on a call that this CRI does not have.
type Forwarder interface {
	// Forward makes the call with the request first and all that more returns
	// until its error, which is io.EOF at the end, and hands on each message of
	// the answer unread. more may still be waiting when Forward returns, and must
	// then end with the call that it belongs to.
	Forward(ctx context.Context, method string, first proto.Message, more func() (proto.Message, error), send func(proto.Message) error) error
}

// forwardUnknown serves the methods and services of the CRI that are newer than this
// one. A call that has the id of a sandbox or container in its first request
// goes to its owner, any other to the default handler's backend; Unimplemented
// if that cannot pass it on.
func (r *Router) forwardUnknown(_ any, stream grpc.ServerStream) error {
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
	name, to := "", r.starts.routes.standard().Backend
	owner, err := r.owners.mentioned(first)
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
	var failed error
	eachText(message, func(n protowire.Number, text []byte) bool {
		if n == 1 && len(text) < fullID && isShortID(string(text)) {
			owner, failed = o.begun(string(text))
		}
		return owner == nil && failed == nil
	})
	return owner, failed
}

// idDepth is how deep in a message ids are looked for.
const idDepth = 4

// maxID is how long a text may be that is taken for an id, in bytes.
const maxID = 256

// named is the owner of the first full id in a message. missed says that there
// is what looks like one and nobody is known to have.
func (o *owners) named(message []byte, depth int) (owner *Owner, missed bool) {
	eachText(message, func(_ protowire.Number, text []byte) bool {
		if len(text) == 0 || len(text) > maxID {
			return true
		}
		id := string(text)
		if owner = o.containers.get(id); owner == nil {
			owner = o.sandboxes.get(id)
		}
		if owner == nil && len(id) == fullID && isHex(id) {
			missed = true
		}
		return owner == nil
	})
	if owner != nil || depth == 0 {
		return owner, missed
	}
	eachText(message, func(_ protowire.Number, text []byte) bool {
		found, inside := o.named(text, depth-1)
		owner, missed = found, missed || inside
		return owner == nil
	})
	return owner, missed
}

// begun is the owner of a container's or sandbox's id that begins so.
func (o *owners) begun(id string) (*Owner, error) {
	sandbox, err := o.sandboxes.resolve(id)
	if err != nil {
		return nil, err
	}
	container, err := o.containers.resolve(id)
	if err == nil && sandbox != nil && container != nil {
		err = ambiguous(id, []*Owner{sandbox, container})
	}
	if err != nil || container != nil {
		return container, err
	}
	return sandbox, nil
}

// minShortID is how much of an id has to be there to be taken for one where it
// is not known to be one.
const minShortID = 6

func isShortID(s string) bool {
	return len(s) >= minShortID && isHex(s)
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// eachText visits what may be the texts of a message until visit says no. What is
// no message has none.
func eachText(message []byte, visit func(n protowire.Number, text []byte) bool) {
	for b := message; len(b) > 0; {
		n, t, head := protowire.ConsumeTag(b)
		if head < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(n, t, b[head:])
		if size < 0 {
			return
		}
		if t == protowire.BytesType {
			if text, _ := protowire.ConsumeBytes(b[head:]); !visit(n, text) {
				return
			}
		}
		b = b[head+size:]
	}
}
