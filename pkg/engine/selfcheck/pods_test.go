package selfcheck

import (
	"fmt"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

// The program exits with one of these statuses on request, however early the request is.
func TestSelfCheckEnds(t *testing.T) {
	for status, want := range map[uint32]bool{0: true, 2: true, 143: true, 1: false, 127: false, 137: false} {
		test.Equal(t, fmt.Sprintf("exitedOnRequest(%d)", status), exitedOnRequest(status), want)
	}
}

func TestNoSelfCheckAfterTheEnd(t *testing.T) {
	b := &Pods{existing: map[string]bool{}}
	d := &handler.Definition{Name: "runc"}
	test.Must(t, b.reserve(d))
	test.Fails(t, b.reserve(d), "a handler has two self-check pods at a time")
	over := make(chan struct{})
	go func() {
		defer close(over)
		b.Close(t.Context())
	}()
	b.release(d)
	b.running.Done()
	<-over
	test.Fails(t, b.reserve(d), "a self-check pod was reserved after Close")
}
