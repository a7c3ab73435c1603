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
	// Forward makes the call and hands on each message of the answer unread.
	Forward(ctx context.Context, method string, req proto.Message, send func(proto.Message) error) error
}

// Unknown serves the methods of the CRI that are newer than this one. A call
// that has the id of a sandbox or container in its request goes to its owner,
// any other to the default handler's backend; Unimplemented if that cannot pass
// it on. It is for grpc.UnknownServiceHandler.
func (r *Router) Unknown(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	missing := status.Errorf(codes.Unimplemented, "unknown method %s", method)
	if !strings.HasPrefix(method, "/runtime.v1.RuntimeService/") && !strings.HasPrefix(method, "/runtime.v1.ImageService/") {
		return missing
	}
	if !r.gate.open.Load() {
		return errNotReady
	}
	req := &emptypb.Empty{} // all fields are unknown to it
	if err := stream.RecvMsg(req); err != nil {
		return err
	}
	name, to := "", r.starts.routes.standard().Backend
	if owner := r.owners.mentioned(req); owner != nil {
		name, to = owner.Handler, owner.Backend
		observe.SetHandler(stream.Context(), name)
	}
	f, ok := to.(Forwarder)
	if !ok {
		return missing
	}
	return named(name, f.Forward(stream.Context(), method, req, func(m proto.Message) error { return stream.SendMsg(m) }))
}

// mentioned is the owner of the first full id among the texts of a message.
func (o *owners) mentioned(m proto.Message) *Owner {
	for b := []byte(m.ProtoReflect().GetUnknown()); len(b) > 0; {
		_, t, head := protowire.ConsumeTag(b)
		size := protowire.ConsumeFieldValue(0, t, b[max(head, 0):])
		if head < 0 || size < 0 {
			return nil
		}
		if t == protowire.BytesType {
			text, _ := protowire.ConsumeString(b[head:])
			for _, x := range []*index{&o.containers, &o.sandboxes} {
				if owner := x.get(text); owner != nil {
					return owner
				}
			}
		}
		b = b[head+size:]
	}
	return nil
}
