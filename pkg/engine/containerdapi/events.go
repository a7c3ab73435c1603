package containerdapi

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	events "github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/events/v1"
	"github.com/containerd/containerd/api/types"
	core "github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
)

// Broker passes events to subscribers. It never waits: a subscriber that is too slow is
// disconnected with an error. The zero value is ready and has no subscribers.
type Broker struct {
	mu   sync.Mutex
	subs map[*subscriber]struct{}
	// tasks are the tasks with an event since the daemon started, by container. The events of a
	// removal need them, when process and container no longer exist.
	tasks map[string]task
}

// subscriberBuffer is how many events a subscriber may be behind, and maxSubscribers the limit of
// subscribers.
const subscriberBuffer, maxSubscribers = 1024, 128

// Limits of a subscription.
const maxFilters, maxFilterBytes = 64, 8 << 10

type subscriber struct {
	// wants is evaluated in the subscriber's own goroutine, so that publishers never wait.
	wants  filters.Filter
	events chan *core.Envelope
	missed bool // guarded by Broker.mu, and not written after events is closed
}

var errMissed = fmt.Errorf("the subscriber is more than %d events behind and missed some; list, and subscribe again: %w", subscriberBuffer, errdefs.ErrUnavailable)

// Publish implements events.Publisher of containerd. Events are of Namespace, whatever ctx names.
func (b *Broker) Publish(_ context.Context, topic string, event core.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.subs) == 0 {
		return nil
	}
	packed, err := typeurl.MarshalAny(event)
	if err != nil {
		return fmt.Errorf("event %s: %w", topic, err)
	}
	e := &core.Envelope{Timestamp: time.Now(), Namespace: Namespace, Topic: topic, Event: packed}
	for s := range b.subs {
		select {
		case s.events <- e:
		default:
			s.missed = true
			delete(b.subs, s)
			close(s.events)
		}
	}
	return nil
}

func (b *Broker) subscribe(fs []string) (*subscriber, error) {
	size := 0
	for _, f := range fs {
		size += len(f)
	}
	if len(fs) > maxFilters || size > maxFilterBytes {
		return nil, fmt.Errorf("%d filters with %d bytes in total; subscribe with at most %d filters and %d bytes: %w", len(fs), size, maxFilters, maxFilterBytes, errdefs.ErrInvalidArgument)
	}
	wants, err := filters.ParseAll(fs...)
	if err != nil {
		return nil, err
	}
	s := &subscriber{wants: wants, events: make(chan *core.Envelope, subscriberBuffer)}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.subs) >= maxSubscribers {
		return nil, fmt.Errorf("%d clients subscribe to events; close some: %w", maxSubscribers, errdefs.ErrResourceExhausted)
	}
	if b.subs == nil {
		b.subs = map[*subscriber]struct{}{}
	}
	b.subs[s] = struct{}{}
	return s, nil
}

func (b *Broker) unsubscribe(s *subscriber) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.subs, s)
}

type eventService struct {
	eventsapi.UnimplementedEventsServer
	broker *Broker
	oom    func(task string)
}

func (s *eventService) Subscribe(r *eventsapi.SubscribeRequest, to eventsapi.Events_SubscribeServer) error {
	sub, err := s.broker.subscribe(r.GetFilters())
	if err != nil {
		return err
	}
	defer s.broker.unsubscribe(sub)
	for {
		select {
		case e, ok := <-sub.events:
			if !ok {
				return errMissed
			}
			if !sub.wants.Match(e) {
				continue
			}
			message := &types.Envelope{Timestamp: timestamppb.New(e.Timestamp), Namespace: e.Namespace, Topic: e.Topic, Event: typeurl.MarshalProto(e.Event)}
			if err := to.Send(message); err != nil {
				return err
			}
		case <-to.Context().Done():
			return nil
		}
	}
}

// Publish implements eventsapi.EventsServer, for shims.
func (s *eventService) Publish(_ context.Context, r *eventsapi.PublishRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.handleEvent(r.GetEvent())
}

// Forward implements eventsapi.EventsServer, for shims.
func (s *eventService) Forward(_ context.Context, r *eventsapi.ForwardRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.handleEvent(r.GetEnvelope().GetEvent())
}

// handleEvent uses only OOM events, which the Task API does not have. All else comes from the Task
// API, which misses nothing while the daemon is down.
func (s *eventService) handleEvent(event *anypb.Any) error {
	if event == nil || !typeurl.Is(event, &events.TaskOOM{}) {
		return nil
	}
	var oom events.TaskOOM
	if err := typeurl.UnmarshalTo(event, &oom); err != nil {
		return fmt.Errorf("event: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	s.oom(oom.ContainerID)
	return nil
}

type task struct {
	pid  uint32
	code uint32
	at   time.Time
	oom  bool
}

// next applies an event to a container's task, and returns the task; after a removal, the last one.
// It returns false for a container without a task.
func (b *Broker) next(id string, t runtimeapi.ContainerEventType, now task, has bool) (task, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known, ok := b.tasks[id]
	switch t {
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		if !has {
			return task{}, false
		}
		known = now
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		if !ok && !has {
			return task{}, false
		}
		now.pid = known.pid
		known = now
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		delete(b.tasks, id)
		return known, ok
	default:
		return task{}, false
	}
	if b.tasks == nil {
		b.tasks = map[string]task{}
	}
	b.tasks[id] = known
	return known, true
}

// Announced implements events.Listener. It publishes the CRI's events of a pod as containerd's.
func (b *Broker) Announced(s *pod.Sandbox, c *pod.Container, id string, t runtimeapi.ContainerEventType) {
	now, has := taskOf(s, c, id)
	known, has := b.next(id, t, now, has)
	for _, e := range lifeEvents(s, c, id, t, known, has) {
		if err := b.Publish(context.Background(), e.topic, e.event); err != nil {
			log.L.WithError(err).WithField("container", id).Debug("Failed to publish event")
		}
	}
}

// taskOf returns the recorded task of a sandbox or container; false if it has none.
func taskOf(s *pod.Sandbox, c *pod.Container, id string) (task, bool) {
	if id == s.ID() {
		return task{pid: uint32(s.Status().PID), code: s.Status().ExitCode, at: time.Now()}, s.Spec().Plan.Process
	}
	if c == nil {
		return task{}, false
	}
	st := c.Status()
	return task{pid: uint32(st.PID), code: uint32(st.ExitCode), at: time.Unix(0, st.FinishedAt), oom: st.Reason == "OOMKilled"}, st.StartedAt != 0
}

type topical struct {
	topic string
	event core.Event
}

// lifeEvents are containerd's events for one event of the CRI, in order. c is nil for an event of
// the sandbox, or of a removed container. Pure.
func lifeEvents(s *pod.Sandbox, c *pod.Container, id string, t runtimeapi.ContainerEventType, known task, has bool) []topical {
	var all []topical
	ofTask := func(topic string, event core.Event) {
		if has {
			all = append(all, topical{topic, event})
		}
	}
	switch t {
	case runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT:
		imageName := sandboxImage
		if c != nil {
			imageName = cmp.Or(c.Spec().ImageTag, c.Spec().ImageRef, c.Spec().ImageName)
		}
		all = append(all, topical{"/containers/create", &events.ContainerCreate{ID: id, Image: imageName, Runtime: &events.ContainerCreate_Runtime{Name: runtimeName(s.Spec().Definition)}}})
	case runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT:
		ofTask("/tasks/create", &events.TaskCreate{ContainerID: id, Pid: known.pid})
		ofTask("/tasks/start", &events.TaskStart{ContainerID: id, Pid: known.pid})
	case runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT:
		if known.oom {
			ofTask("/tasks/oom", &events.TaskOOM{ContainerID: id})
		}
		ofTask("/tasks/exit", &events.TaskExit{ContainerID: id, ID: id, Pid: known.pid, ExitStatus: known.code, ExitedAt: timestamppb.New(known.at)})
	case runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT:
		ofTask("/tasks/delete", &events.TaskDelete{ContainerID: id, ID: id, Pid: known.pid, ExitStatus: known.code, ExitedAt: timestamppb.New(known.at)})
		all = append(all, topical{"/containers/delete", &events.ContainerDelete{ID: id}})
	}
	return all
}
