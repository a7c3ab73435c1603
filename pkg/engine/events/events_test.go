package events

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
)

// newEvents returns the part of an engine that serves events.
func newEvents() Calls {
	return Calls{NewBroker(), log.L}
}

// ticks provides the times of events.
var ticks pod.Clock

// happen publishes n events.
func (b Calls) happen(n int) {
	for range n {
		b.Broker.publish(func() *runtimeapi.ContainerEventResponse {
			return &runtimeapi.ContainerEventResponse{CreatedAt: ticks.Now()}
		})
	}
}

// reader is the server's end of a stream. Send blocks until the channel read has room.
type reader struct {
	grpc.ServerStreamingServer[runtimeapi.ContainerEventResponse]
	ctx  context.Context
	read chan *runtimeapi.ContainerEventResponse
}

func (r *reader) Context() context.Context { return r.ctx }

func (r *reader) Send(e *runtimeapi.ContainerEventResponse) error {
	r.read <- e
	return nil
}

// subscribeAs subscribes a reader that has room for that many events. The channel
// receives the result of the subscription.
func (b Calls) subscribeAs(ctx context.Context, room int) (*reader, <-chan error) {
	r := &reader{ctx: ctx, read: make(chan *runtimeapi.ContainerEventResponse, room)}
	ended := make(chan error, 1)
	go func() {
		ended <- b.GetContainerEvents(&runtimeapi.GetEventsRequest{}, r)
		close(r.read)
	}()
	return r, ended
}

func TestEventTimesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newEvents()
		ctx, cancel := context.WithCancel(t.Context())
		const announcers, each = 8, 100
		var readers []*reader
		for range 3 {
			r, _ := b.subscribeAs(ctx, announcers*each)
			readers = append(readers, r)
		}
		synctest.Wait()
		var all sync.WaitGroup
		for range announcers {
			all.Go(func() { b.happen(each) })
		}
		all.Wait()
		synctest.Wait()
		cancel()
		synctest.Wait()
		for i, r := range readers {
			var last int64
			n := 0
			for e := range r.read {
				if n++; e.GetCreatedAt() <= last {
					t.Errorf("reader %d: event %d has the time %d, the event before it %d", i, n, e.GetCreatedAt(), last)
				}
				last = e.GetCreatedAt()
			}
			if n != announcers*each {
				t.Errorf("reader %d got %d events", i, n)
			}
		}
	})
}

// A reader that stalls does not delay other readers. Its subscription is removed and
// ends with an error.
func TestStalledReaderIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newEvents()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stalled, ended := b.subscribeAs(ctx, 0)
		well, _ := b.subscribeAs(ctx, 10*subscriberBuffer)
		synctest.Wait()
		b.happen(1) // the stalled reader's Send blocks with this event
		synctest.Wait()
		b.happen(subscriberBuffer)
		synctest.Wait()
		if n := len(b.Broker.subs); n != 2 {
			t.Fatalf("%d subscribers are left when a buffer is full, want 2", n)
		}
		b.happen(subscriberBuffer)
		synctest.Wait()
		if n := len(b.Broker.subs); n != 1 {
			t.Errorf("%d subscribers are left, want one", n)
		}
		if n := len(well.read); n != 2*subscriberBuffer+1 {
			t.Errorf("another reader got %d events", n)
		}
		<-stalled.read // the stalled reader continues
		err := <-ended
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "subscribe again") {
			t.Errorf("the stalled subscription ends with %v, want Unavailable that advises to subscribe again", err)
		}
		if _, more := <-stalled.read; more {
			t.Error("the stalled reader got an event after the events that it missed")
		}
	})
}

func TestEventsOfAClosingEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newEvents()
		_, ended := b.subscribeAs(t.Context(), 0)
		synctest.Wait()
		b.Broker.Close()
		if err := <-ended; err != nil {
			t.Errorf("the subscription ends with %v", err)
		}
		b.happen(1)
		if _, ended := b.subscribeAs(t.Context(), 0); <-ended != nil {
			t.Error("a subscription to a closed broker ended with an error")
		}
	})
}

// The events buffered for a stalled reader are freed when its subscription is removed.
func TestStalledReaderHoldsLittle(t *testing.T) {
	b := NewBroker()
	s := b.subscribe()
	const size = 64 << 10
	used := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := used()
	for range 2 * subscriberBuffer {
		b.publish(func() *runtimeapi.ContainerEventResponse {
			return &runtimeapi.ContainerEventResponse{ContainerId: strings.Repeat("x", size)}
		})
	}
	if after := used(); after > before+subscriberBuffer*size/4 {
		t.Errorf("the heap has grown by %d KiB after the stalled reader was removed", (after-before)>>10)
	}
	runtime.KeepAlive(s)
}
