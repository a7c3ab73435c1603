package engine

import (
	"sync"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// events serves GetContainerEvents.
type events struct{ *core }

// subscriberBuffer is how many events a slow reader may be behind. The kubelet
// re-lists when it misses one; a life-cycle call must never wait for a reader.
const subscriberBuffer = 1024

// broker hands events to all subscribers.
type broker struct {
	mu     sync.Mutex
	subs   map[chan *runtimeapi.ContainerEventResponse]struct{}
	closed bool
}

func newBroker() *broker {
	return &broker{subs: map[chan *runtimeapi.ContainerEventResponse]struct{}{}}
}

func (k *broker) subscribe() chan *runtimeapi.ContainerEventResponse {
	ch := make(chan *runtimeapi.ContainerEventResponse, subscriberBuffer)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		close(ch)
		return ch
	}
	k.subs[ch] = struct{}{}
	return ch
}

func (k *broker) unsubscribe(ch chan *runtimeapi.ContainerEventResponse) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.subs, ch)
}

// publish calls event only if somebody listens, under the lock: events reach
// every subscriber in the order of their times.
func (k *broker) publish(event func() *runtimeapi.ContainerEventResponse) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.subs) == 0 {
		return
	}
	e := event()
	for ch := range k.subs {
		select {
		case ch <- e:
		default:
		}
	}
}

func (k *broker) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for ch := range k.subs {
		close(ch)
		delete(k.subs, ch)
	}
}

// GetContainerEvents streams what happens from now on.
func (b events) GetContainerEvents(_ *runtimeapi.GetEventsRequest, stream grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]) error {
	ch := b.broker.subscribe()
	defer b.broker.unsubscribe(ch)
	for {
		select {
		case e, ok := <-ch:
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

// announce tells subscribers what happened to id, with the pod's state after it.
func (k *core) announce(id string, s *sandbox, t runtimeapi.ContainerEventType) {
	k.broker.publish(func() *runtimeapi.ContainerEventResponse {
		e := &runtimeapi.ContainerEventResponse{
			ContainerId: id, ContainerEventType: t, CreatedAt: k.clock.now(), PodSandboxStatus: s.status(),
		}
		for _, c := range k.objects.containersOf(s.ID()) {
			e.ContainersStatuses = append(e.ContainersStatuses, containers{k}.status(c))
		}
		return e
	})
}
