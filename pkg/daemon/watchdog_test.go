package daemon_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// The service manager is notified as long as the daemon responds.
func TestWatchdog(t *testing.T) {
	b := newBed(t)
	manager := b.manager(t)
	b.options.Watchdog = 400 * time.Millisecond
	var mu sync.Mutex
	stuck := make(chan struct{})
	close(stuck)
	b.engine.Fail = func(ctx context.Context, rpc string) error {
		if rpc != "ListContainers" {
			return nil
		}
		mu.Lock()
		wait := stuck
		mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	b.started(t)
	if said := told(t, manager, time.Minute); !strings.HasPrefix(said, "READY=1\nSTATUS=Generation 1, handlers: ") {
		t.Errorf("the notification when it is ready is %q", said)
	}
	for range 3 {
		if said := told(t, manager, time.Minute); said != "WATCHDOG=1" {
			t.Fatalf("the notification while it responds is %q", said)
		}
	}

	mu.Lock()
	stuck = make(chan struct{})
	mu.Unlock()
	for told(t, manager, 2*time.Second) != "" { // older notifications
	}

	mu.Lock()
	close(stuck)
	mu.Unlock()
	test.Equal(t, "notification when it responds again", told(t, manager, time.Minute), "WATCHDOG=1")
}
