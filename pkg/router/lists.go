package router

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/wire"
)

// lists routes the lists of sandboxes and containers.
type lists struct {
	owners *owners
}

func (l lists) ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	if err := l.owners.completeSandboxFilter(req.GetFilter()); err != nil {
		return nil, err
	}
	return gather(ctx, l.owners.all(), req, listSandboxes, concatenated)
}

func (l lists) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	list, err := l.ListPodSandbox(to.Context(), alike(&runtimeapi.ListPodSandboxRequest{Filter: req.GetFilter()}, req))
	return stream(list, err, to)
}

func (l lists) ListContainers(ctx context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	if err := l.owners.completeContainerFilter(req.GetFilter()); err != nil {
		return nil, err
	}
	return gather(ctx, l.owners.all(), req, listContainers, concatenated)
}

func (l lists) StreamContainers(req *runtimeapi.StreamContainersRequest, to grpc.ServerStreamingServer[runtimeapi.StreamContainersResponse]) error {
	list, err := l.ListContainers(to.Context(), alike(&runtimeapi.ListContainersRequest{Filter: req.GetFilter()}, req))
	return stream(list, err, to)
}

// listSandboxes lists the sandboxes of one backend, in encoded form if the backend has it.
func listSandboxes(b Backend, ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) { //nolint:revive // the shape of a method expression, as gather takes them
	e, ok := b.(Encoder)
	if !ok {
		return b.ListPodSandbox(ctx, req)
	}
	list, err := e.EncodedSandboxes(req.GetFilter())
	return encodedList[runtimeapi.ListPodSandboxResponse](list, err)
}

func listContainers(b Backend, ctx context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) { //nolint:revive // as listSandboxes
	e, ok := b.(Encoder)
	if !ok {
		return b.ListContainers(ctx, req)
	}
	list, err := e.EncodedContainers(req.GetFilter())
	return encodedList[runtimeapi.ListContainersResponse](list, err)
}

// encodedList returns a message with the encoded list as its unknown fields.
func encodedList[R any, P message[R]](list []byte, err error) (P, error) {
	if err != nil {
		return nil, err
	}
	m := P(new(R))
	wire.Frame(list).Carry(m)
	return m, nil
}

// sandboxFilter is what the filters of sandboxes and of their statistics have in common.
type sandboxFilter interface {
	proto.Message
	GetId() string
}

type containerFilter interface {
	sandboxFilter
	GetPodSandboxId() string
}

// completeSandboxFilter replaces a short ID in a filter by the full one.
func (o *owners) completeSandboxFilter(f sandboxFilter) error {
	return completeFilter(f, "id", f.GetId(), &o.sandboxes)
}

// completeContainerFilter replaces short IDs in a filter by the full ones.
func (o *owners) completeContainerFilter(f containerFilter) error {
	if err := completeFilter(f, "id", f.GetId(), &o.containers); err != nil {
		return err
	}
	return completeFilter(f, sandboxField, f.GetPodSandboxId(), &o.sandboxes)
}
