// Package events reports life-cycle events of sandboxes and containers to subscribers of the CRI.
package events

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
)

// Calls serves GetContainerEvents.
type Calls struct {
	Broker *Broker
	Log    *log.Entry
}

// subscriberBuffer is how many events a reader may be behind.
const subscriberBuffer = 1024

// errMissed ends the subscription of a reader that is more than subscriberBuffer events behind.
// Life-cycle calls never wait for readers. A reader that missed an event without an error would
// keep an outdated state; after the error it lists again.
var errMissed = fmt.Errorf("the subscriber is more than %d events behind and missed some; list sandboxes and containers, and subscribe again: %w",
	subscriberBuffer, errdefs.ErrUnavailable)

// Broker passes events to all subscribers.
type Broker struct {
	mu     sync.Mutex
	subs   map[*subscriber]struct{}
	closed bool
}

// subscriber is one stream. Its channel is closed after the last event.
type subscriber struct {
	events chan *runtimeapi.ContainerEventResponse
	// missed is set if the subscriber missed an event. It is written before the channel is closed.
	missed bool
}

// NewBroker returns a Broker without subscribers.
func NewBroker() *Broker { return &Broker{subs: map[*subscriber]struct{}{}} }

func (k *Broker) subscribe() *subscriber {
	s := &subscriber{events: make(chan *runtimeapi.ContainerEventResponse, subscriberBuffer)}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		close(s.events)
		return s
	}
	k.subs[s] = struct{}{}
	return s
}

func (k *Broker) unsubscribe(s *subscriber) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.subs, s)
}

// publish calls event only if there are subscribers, under the lock: events reach every subscriber
// in the order of their times. It never waits.
func (k *Broker) publish(event func() *runtimeapi.ContainerEventResponse) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.subs) == 0 {
		return
	}
	e := event()
	for s := range k.subs {
		select {
		case s.events <- e:
		default:
			delete(k.subs, s)
			s.cut()
		}
	}
}

// cut ends a subscription and drops its unread events.
func (s *subscriber) cut() {
	s.missed = true
	for {
		select {
		case <-s.events:
		default:
			close(s.events)
			return
		}
	}
}

// Close ends all current and future subscriptions.
func (k *Broker) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for s := range k.subs {
		close(s.events)
		delete(k.subs, s)
	}
}

// GetContainerEvents streams events from now on.
func (b Calls) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	s := b.Broker.subscribe()
	defer b.Broker.unsubscribe(s)
	for {
		select {
		case e, ok := <-s.events:
			if !ok && s.missed {
				b.Log.WithField("buffer", subscriberBuffer).Warn("Event subscriber too slow; disconnected")
				return errMissed
			}
			if !ok {
				return nil
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

// Announcer reports events of sandboxes and containers to subscribers.
type Announcer struct {
	pods     *pod.Registry
	broker   *Broker
	listener Listener
}

// Listener receives every event. It must return at once. c is nil if the event is about the
// sandbox, or about a removed container.
type Listener interface {
	Announced(s *pod.Sandbox, c *pod.Container, id string, t runtimeapi.ContainerEventType)
}

// NewAnnouncer reports to subscribers of the broker, and to l unless that is nil.
func NewAnnouncer(b *Broker, pods *pod.Registry, l Listener) *Announcer {
	return &Announcer{broker: b, pods: pods, listener: l}
}

// Announce reports an event of id, with the pod's state after it.
func (a *Announcer) Announce(id string, s *pod.Sandbox, t runtimeapi.ContainerEventType) {
	a.broker.publish(func() *runtimeapi.ContainerEventResponse {
		e := &runtimeapi.ContainerEventResponse{
			ContainerId: id, ContainerEventType: t, CreatedAt: a.pods.Clock.Now(), PodSandboxStatus: s.CRIStatus(),
		}
		for _, c := range a.pods.Index.ContainersOf(s.ID()) {
			e.ContainersStatuses = append(e.ContainersStatuses, c.CRIStatus())
		}
		return e
	})
	if a.listener == nil {
		return
	}
	c, err := a.pods.Index.Container(id)
	if err != nil || c.ID() != id {
		c = nil
	}
	a.listener.Announced(s, c, id, t)
}
