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

// events routes subscriptions to container events.
type events struct {
	owners *owners
	// life ends all subscriptions when it is cancelled, so that a server can stop.
	life context.Context
}

// GetContainerEvents subscribes at every backend and passes events on as they arrive. A pod has one
// backend, so its events keep their order. The client's subscription ends as soon as that of one
// backend ends. The kubelet then falls back to lists; otherwise it would miss that backend's events
// without noticing. The subscription also ends when the set of backends changes.
func (e events) GetContainerEvents(req *runtimeapi.GetEventsRequest, to eventStream) error {
	backends, backendsCtx := e.owners.snapshot()
	if len(backends) == 0 {
		return errNoBackend
	}
	ctx, cancel := context.WithCancel(to.Context())
	defer cancel()
	defer context.AfterFunc(e.life, cancel)()
	defer context.AfterFunc(backendsCtx, cancel)()
	err := subscribe(ctx, backends, req, to)
	switch {
	case e.life.Err() != nil:
		return errStopping
	case backendsCtx.Err() != nil:
		return errBackendsChanged
	}
	return err
}

// errBackendsChanged ends a subscription after the set of backends has changed.
var errBackendsChanged = status.Error(codes.Unavailable, "the set of backends has changed; subscribe again")

// errEnded is returned if a backend ends its subscription without an error; it ends all others.
var errEnded = status.Error(codes.Unavailable, "the backend closed the subscription; subscribe again")

// subscribe subscribes at all backends, and returns when the first subscription ends.
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

// sharedStream serializes the sends of several backends on one stream.
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
