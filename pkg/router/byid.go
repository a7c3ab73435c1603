package router

import (
	"context"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/berth-cri/berth/pkg/observe"
)

const (
	sandboxField   protoreflect.Name = "pod_sandbox_id"
	containerField protoreflect.Name = "container_id"
)

type sandboxRequest interface {
	proto.Message
	GetPodSandboxId() string
}

type containerRequest interface {
	proto.Message
	GetContainerId() string
}

func bySandbox[Q sandboxRequest, R any](ctx context.Context, o *owners, req Q, call func(Backend, context.Context, Q) (R, error)) (R, error) {
	owner, err := o.sandbox(req.GetPodSandboxId())
	if err != nil {
		return *new(R), err
	}
	return callOwner(ctx, owner, sandboxField, req.GetPodSandboxId(), req, call)
}

func byContainer[Q containerRequest, R any](ctx context.Context, o *owners, req Q, call func(Backend, context.Context, Q) (R, error)) (R, error) {
	owner, err := o.container(req.GetContainerId())
	if err != nil {
		return *new(R), err
	}
	return callOwner(ctx, owner, containerField, req.GetContainerId(), req, call)
}

func callOwner[Q proto.Message, R any](ctx context.Context, owner *Owner, field protoreflect.Name, id string, req Q,
	call func(Backend, context.Context, Q) (R, error),
) (R, error) {
	observe.SetHandler(ctx, owner.Handler)
	observe.SetBinary(ctx, binaryOf(owner.Attempt))
	if id != owner.ID {
		complete(req, field, owner.ID)
	}
	resp, err := call(owner.Backend, ctx, req)
	return resp, named(owner.Handler, err)
}

// complete replaces a short ID by the full one: backends receive only full IDs.
func complete(m proto.Message, field protoreflect.Name, id string) {
	r := m.ProtoReflect()
	r.Set(r.Descriptor().Fields().ByName(field), protoreflect.ValueOfString(id))
}

// completeFilter replaces a short ID in the filter of a list call. An unknown ID stays; it matches
// nothing.
func completeFilter(m proto.Message, field protoreflect.Name, id string, x *index) error {
	if id == "" {
		return nil
	}
	owner, err := x.resolve(id)
	if err != nil || owner == nil || owner.ID == id {
		return err
	}
	complete(m, field, owner.ID)
	return nil
}
