package router

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var errStopping = status.Error(codes.Unavailable, "berth is stopping; subscribe again after its restart")

type eventStream = grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]

// events routes the subscription to what happens.
type events struct {
	owners *owners
	// life ends when subscriptions shall end, so that a server can stop.
	life context.Context
}

// GetContainerEvents subscribes at every backend and passes events on as they
// come: a pod has one backend, so the order within a pod is the backend's. The
// subscription ends as soon as one backend's does, because the kubelet falls
// back to lists when events end, and would never hear of the ones that a
// silently missing backend owes it. It ends as well when there are other backends.
func (e events) GetContainerEvents(req *runtimeapi.GetEventsRequest, to eventStream) error {
	backends, turned := e.owners.now()
	if len(backends) == 0 {
		return errNoBackend
	}
	ctx, cancel := context.WithCancel(to.Context())
	defer cancel()
	defer context.AfterFunc(e.life, cancel)()
	defer context.AfterFunc(turned, cancel)()
	err := subscribe(ctx, backends, req, to)
	switch {
	case e.life.Err() != nil:
		return errStopping
	case turned.Err() != nil:
		return errOthers
	}
	return err
}

// errOthers ends a subscription that would not hear of a new backend.
var errOthers = status.Error(codes.Unavailable, "the set of backends has changed; subscribe again")

// errEnded makes the regular end of one subscription the end of all.
var errEnded = status.Error(codes.Unavailable, "the backend closed the subscription; subscribe again")

// subscribe ends with the first subscription that ends.
func subscribe(ctx context.Context, backends []Backend, req *runtimeapi.GetEventsRequest, to eventStream) error {
	var sending sync.Mutex
	if len(backends) == 1 {
		return backends[0].GetContainerEvents(req, &sharedStream{to, ctx, &sending})
	}
	_, err := askAll(ctx, backends, func(ctx context.Context, b Backend) (struct{}, error) {
		err := b.GetContainerEvents(req, &sharedStream{to, ctx, &sending})
		if err == nil {
			err = errEnded
		}
		return struct{}{}, err
	})
	return err
}

// sharedStream lets several backends send on one stream.
type sharedStream struct {
	eventStream
	ctx     context.Context
	sending *sync.Mutex
}

func (s *sharedStream) Context() context.Context { return s.ctx }

func (s *sharedStream) Send(m *runtimeapi.ContainerEventResponse) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.eventStream.Send(m)
}
