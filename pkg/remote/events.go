package remote

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/wire"
)

// events passes on the daemon's events. A client's subscription ends when the daemon's stream
// ends. A subscription that began while the daemon was away ends when the daemon is back, so that a
// kubelet lists and subscribes again.
type events struct {
	*caller
	names *names
	lists *lists
}

type eventStream = grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]

func (e *events) GetContainerEvents(req *runtimeapi.GetEventsRequest, to eventStream) error {
	ctx := to.Context()
	if !e.monitor.current().Answers() {
		if err := e.monitor.await(ctx); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, e.name+" was away, and its events of that time are lost; list, and subscribe again")
	}
	err := e.stream(ctx, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, req, func(f wire.Frame) error { return e.pass(f, to) })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return status.Error(codes.Unavailable, e.name+" closed its event stream")
	case status.Code(err) == codes.Unimplemented:
		return status.Error(codes.Unimplemented, fmt.Sprintf("%s has no events: %s", e.name, reason(err)))
	}
	return err
}

// eventNames are the paths to the names of handlers in the images of an event.
var eventNames = wire.ImageHandlers(&runtimeapi.ContainerEventResponse{})

// pass sends an event of the daemon with this berth's names of handlers.
func (e *events) pass(f wire.Frame, to eventStream) error {
	var event runtimeapi.ContainerEventResponse
	if err := proto.Unmarshal(e.names.rename(f, eventNames...), &event); err != nil {
		return e.malformed(runtimeapi.RuntimeService_GetContainerEvents_FullMethodName)
	}
	if p := event.GetPodSandboxStatus(); p != nil {
		p.RuntimeHandler = e.lists.naming().sandbox(p.GetId(), p.GetRuntimeHandler())
	}
	return to.Send(&event)
}
