package router

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/wire"
)

// lists routes what shows all sandboxes and containers.
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

// listSandboxes asks one backend, for its list as it is sent if it has that.
func listSandboxes(b Backend, ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) { //nolint:revive // the shape of a method expression, as gather takes them
	e, ok := b.(Encoder)
	if !ok {
		return b.ListPodSandbox(ctx, req)
	}
	list, err := e.EncodedSandboxes(req.GetFilter())
	return unreadList[runtimeapi.ListPodSandboxResponse](list, err)
}

// listContainers is listSandboxes for containers.
func listContainers(b Backend, ctx context.Context, req *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) { //nolint:revive // as listSandboxes
	e, ok := b.(Encoder)
	if !ok {
		return b.ListContainers(ctx, req)
	}
	list, err := e.EncodedContainers(req.GetFilter())
	return unreadList[runtimeapi.ListContainersResponse](list, err)
}

// unreadList is a message that is encoded as list, and that nobody has read.
func unreadList[R any, P message[R]](list []byte, err error) (P, error) {
	if err != nil {
		return nil, err
	}
	m := P(new(R))
	wire.Frame(list).Carry(m)
	return m, nil
}

// sandboxFilter is what filters of sandboxes, and of their statistics, have in
// common.
type sandboxFilter interface {
	proto.Message
	GetId() string
}

// containerFilter is the same for containers.
type containerFilter interface {
	sandboxFilter
	GetPodSandboxId() string
}

// completeSandboxFilter makes the short id in a filter a full one.
func (o *owners) completeSandboxFilter(f sandboxFilter) error {
	return completeFilter(f, "id", f.GetId(), &o.sandboxes)
}

// completeContainerFilter makes the short ids in a filter full ones.
func (o *owners) completeContainerFilter(f containerFilter) error {
	if err := completeFilter(f, "id", f.GetId(), &o.containers); err != nil {
		return err
	}
	return completeFilter(f, sandboxField, f.GetPodSandboxId(), &o.sandboxes)
}
