package selfcheck

import (
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

// What the program ends with, however early it is asked to.
func TestSelfCheckEnds(t *testing.T) {
	for status, want := range map[uint32]bool{0: true, 2: true, 143: true, 1: false, 127: false, 137: false} {
		if got := endedAsAsked(status); got != want {
			t.Errorf("endedAsAsked(%d) = %v, want %v", status, got, want)
		}
	}
}

func TestNoSelfCheckAfterTheEnd(t *testing.T) {
	b := &Pods{there: map[string]bool{}}
	d := &handler.Definition{Name: "runc"}
	test.Must(t, b.reserve(d))
	if err := b.reserve(d); err == nil {
		t.Error("there are two at a time")
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		b.Close(t.Context())
	}()
	b.release(d)
	b.running.Done()
	<-over
	if err := b.reserve(d); err == nil {
		t.Error("one began after the end")
	}
}
