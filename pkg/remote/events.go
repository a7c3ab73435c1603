package remote

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// events passes on what happens in the daemon. A subscription outlives the
// daemon's absence: what happened meanwhile is told from the difference of two
// lists.
type events struct {
	*caller
	names *names
	lists *lists
}

type eventStream = grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]

func (e *events) GetContainerEvents(req *runtimeapi.GetEventsRequest, to eventStream) error {
	s := &subscription{events: e, to: to}
	ctx := to.Context()
	if h := e.monitor.current(); h.Phase != Ready && h.Phase != Connected {
		if err := s.asListed(); err != nil {
			return err
		}
	}
	for {
		if err := e.monitor.await(ctx); err != nil {
			return err
		}
		on := e.abilities.connection()
		err := s.follow(ctx, req)
		var gone *clientError
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &gone):
			return gone.error
		case status.Code(err) == codes.Unimplemented && e.abilities.has(runtimeapi.RuntimeService_GetContainerEvents_FullMethodName):
			e.abilities.miss(runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, on)
			continue // it knows none, and is looked at
		}
		log.G(ctx).WithField("backend", e.name).WithError(err).Info("Event stream of backend closed; resubscribing")
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(quick):
		}
	}
}

// subscription is one client of the daemon's events.
type subscription struct {
	*events
	to eventStream
	// seen is what the client was told, nil before it was told anything.
	seen progress
	// last is the state when the client was last caught up, for what is to be
	// said of what is gone.
	last *state
	// at is the time of the last event.
	at int64
}

const (
	// settled is when a daemon has probably begun to tell its events, which it
	// does not say; and how often one without events is looked at, as a kubelet does.
	settled = time.Second
	// recheck is how often lists are compared with what events told.
	recheck = time.Minute
)

// follow tells what happens until the daemon's events end.
func (s *subscription) follow(ctx context.Context, req *runtimeapi.GetEventsRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	told, ended := make(chan frame), make(chan error, 1)
	if s.abilities.has(runtimeapi.RuntimeService_GetContainerEvents_FullMethodName) {
		go func() {
			ended <- s.stream(ctx, runtimeapi.RuntimeService_GetContainerEvents_FullMethodName, req, func(f frame) error {
				select {
				case told <- f:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
	}
	next := settled
	for {
		if err := s.catchUp(ctx); err != nil {
			return err
		}
		if err := s.hear(ctx, told, ended, next); err != nil {
			return err
		}
		if s.abilities.has(runtimeapi.RuntimeService_GetContainerEvents_FullMethodName) {
			next = min(2*next, recheck) // on a busy machine it begins later
		}
	}
}

// hear passes on what the daemon tells for a while.
func (s *subscription) hear(ctx context.Context, told <-chan frame, ended <-chan error, while time.Duration) error {
	over := time.After(while)
	for {
		select {
		case f := <-told:
			if err := s.pass(f); err != nil {
				return err
			}
		case err := <-ended:
			if err == nil {
				err = status.Error(codes.Unavailable, s.name+" closed its event stream")
			}
			return err
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// asListed takes for told what lists show in place of a daemon that does not
// answer: it is what the client sees that lists by itself, and has to hear what
// differs from it.
func (s *subscription) asListed() error {
	now, err := s.lists.known.state()
	if err == nil && s.seen == nil {
		s.seen, s.last = progressOf(now), now
	}
	return err
}

// catchUp tells what happened since the client was last told anything. A client
// that was told nothing yet lists by itself.
func (s *subscription) catchUp(ctx context.Context) error {
	if err := s.lists.sync(ctx); err != nil {
		if listed := s.asListed(); listed != nil {
			return listed
		}
		return err
	}
	now, err := s.lists.known.state()
	if err != nil {
		return err
	}
	after := progressOf(now)
	if s.seen != nil {
		for _, t := range missed(s.seen, after) {
			if err := s.send(s.compose(ctx, t, now)); err != nil {
				return err
			}
		}
	}
	s.seen, s.last = renewed(s.seen, after), now
	return nil
}

// eventNames are the paths to names of handlers in an event, but for the sandbox's.
var eventNames = imageHandlers(&runtimeapi.ContainerEventResponse{})

// pass tells what the daemon has told, unless the client knows it already. What
// happened is told as it is if it is newer than this CRI.
func (s *subscription) pass(f frame) error {
	var e runtimeapi.ContainerEventResponse
	if err := proto.Unmarshal(s.names.rename(f, eventNames...), &e); err != nil {
		return s.garbage(runtimeapi.RuntimeService_GetContainerEvents_FullMethodName)
	}
	if _, known := stepOf(e.GetContainerEventType()); known && !s.seen.heard(e.GetContainerId(), e.GetPodSandboxStatus().GetId(), e.GetContainerEventType(), e.GetCreatedAt()) {
		return nil
	}
	if p := e.GetPodSandboxStatus(); p != nil {
		p.RuntimeHandler = s.lists.naming().sandbox(p.GetId(), p.GetRuntimeHandler())
	}
	return s.send(&e)
}

// send sends an event later than the one before.
func (s *subscription) send(e *runtimeapi.ContainerEventResponse) error {
	if e.GetCreatedAt() <= s.at {
		e.CreatedAt = s.at + 1
	}
	s.at = e.GetCreatedAt()
	if err := s.to.Send(e); err != nil {
		return &clientError{err}
	}
	return nil
}

// compose makes the event of a transition that nobody told. What cannot be
// asked for any more is said as far as it was known.
func (s *subscription) compose(ctx context.Context, t transition, now *state) *runtimeapi.ContainerEventResponse {
	e := &runtimeapi.ContainerEventResponse{
		ContainerId: t.id, ContainerEventType: t.to, CreatedAt: time.Now().UnixNano(),
		PodSandboxStatus: s.sandboxStatus(ctx, t.sandbox, now),
	}
	for _, c := range now.selectContainers(&runtimeapi.ContainerFilter{PodSandboxId: t.sandbox}) {
		resp, err := readRenamed[runtimeapi.ContainerStatusResponse](ctx, s.caller, s.names, containerStatusNames,
			runtimeapi.RuntimeService_ContainerStatus_FullMethodName, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetId()})
		if err == nil {
			e.ContainersStatuses = append(e.ContainersStatuses, resp.GetStatus())
		}
	}
	return e
}

func (s *subscription) sandboxStatus(ctx context.Context, id string, now *state) *runtimeapi.PodSandboxStatus {
	if now.sandboxes[id] != nil {
		resp, err := readRenamed[runtimeapi.PodSandboxStatusResponse](ctx, s.caller, s.names, mountNames,
			runtimeapi.RuntimeService_PodSandboxStatus_FullMethodName, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		if p := resp.GetStatus(); err == nil && p != nil {
			p.RuntimeHandler = s.lists.naming().sandbox(p.GetId(), p.GetRuntimeHandler())
			return p
		}
	}
	for _, from := range []*state{now, s.last} {
		if from == nil || from.sandboxes[id] == nil {
			continue
		}
		p := from.sandboxes[id]
		return &runtimeapi.PodSandboxStatus{
			Id: id, Metadata: p.GetMetadata(), State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY, CreatedAt: p.GetCreatedAt(),
			Labels: p.GetLabels(), Annotations: p.GetAnnotations(), RuntimeHandler: s.lists.naming().sandbox(p.GetId(), p.GetRuntimeHandler()),
		}
	}
	return nil
}
