package engine

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// events serves GetContainerEvents.
type events struct {
	broker *broker
	log    *log.Entry
}

// subscriberBuffer is how many events a reader may be behind.
const subscriberBuffer = 1024

// errMissed ends the subscription of a reader that is further behind. A
// life-cycle call must never wait for a reader, and one that silently misses an
// event takes a pod for what it is no more; one that is told so lists.
var errMissed = fmt.Errorf("the reader is more than %d events behind and misses some: list sandboxes and containers, and subscribe again: %w",
	subscriberBuffer, errdefs.ErrUnavailable)

// broker hands events to all subscribers.
type broker struct {
	mu     sync.Mutex
	subs   map[*subscriber]struct{}
	closed bool
}

// subscriber is one stream. Its channel is closed when there will be no more.
type subscriber struct {
	events chan *runtimeapi.ContainerEventResponse
	// missed says that it was cut off. It is written before the channel is closed.
	missed bool
}

func newBroker() *broker { return &broker{subs: map[*subscriber]struct{}{}} }

func (k *broker) subscribe() *subscriber {
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

func (k *broker) unsubscribe(s *subscriber) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.subs, s)
}

// publish calls event only if somebody listens, under the lock: events reach
// every subscriber in the order of their times. It waits for nobody.
func (k *broker) publish(event func() *runtimeapi.ContainerEventResponse) {
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

// cut ends a subscription and lets go of what its reader did not take.
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

func (k *broker) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for s := range k.subs {
		close(s.events)
		delete(k.subs, s)
	}
}

// GetContainerEvents streams what happens from now on.
func (b events) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	s := b.broker.subscribe()
	defer b.broker.unsubscribe(s)
	for {
		select {
		case e, ok := <-s.events:
			if !ok {
				return s.ended(b.log)
			}
			if err := stream.Send(e); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (s *subscriber) ended(log *log.Entry) error {
	if !s.missed {
		return nil
	}
	log.WithField("buffer", subscriberBuffer).Warn("A reader of events was too slow and is cut off")
	return errMissed
}

// announcer tells subscribers what happens to sandboxes and containers.
type announcer struct {
	broker  *broker
	clock   *clock
	objects *objects
}

func newAnnouncer(b *broker, c *clock, o *objects) *announcer { return &announcer{b, c, o} }

// announce tells subscribers what happened to id, with the pod's state after it.
func (a *announcer) announce(id string, s *sandbox, t runtimeapi.ContainerEventType) {
	a.broker.publish(func() *runtimeapi.ContainerEventResponse {
		e := &runtimeapi.ContainerEventResponse{
			ContainerId: id, ContainerEventType: t, CreatedAt: a.clock.now(), PodSandboxStatus: s.status(),
		}
		for _, c := range a.objects.containersOf(s.ID()) {
			e.ContainersStatuses = append(e.ContainersStatuses, c.status())
		}
		return e
	})
}
