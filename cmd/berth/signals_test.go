package main

import (
	"context"
	"os"
	"os/signal"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/lifecycle"
)

// raise sends this process a signal.
func raise(t *testing.T, s unix.Signal) {
	t.Helper()
	test.Must(t, unix.Kill(unix.Getpid(), s))
}

// ended says whether a context ends within some time.
func ended(ctx context.Context, within time.Duration) bool {
	select {
	case <-ctx.Done():
		return true
	case <-time.After(within):
		return false
	}
}

func TestSignals(t *testing.T) {
	for _, end := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		seen := make(chan os.Signal, 2)
		signal.Notify(seen, end)
		ctx, hangups, done := untilSignal(t.Context())
		// Uncaught, each of these would end the test here.
		raise(t, unix.SIGHUP)
		raise(t, unix.SIGPIPE)
		if ended(ctx, 50*time.Millisecond) {
			t.Error("SIGHUP or SIGPIPE ends the daemon")
		}
		reloads := make(chan lifecycle.Trigger, 1)
		go reloadOn(ctx, hangups, func(wanted lifecycle.Trigger) { reloads <- wanted })
		select {
		case wanted := <-reloads:
			test.Equal(t, "SIGHUP is a reload by", wanted, lifecycle.TriggerSignal)
		case <-time.After(10 * time.Second):
			t.Error("SIGHUP is forgotten")
		}
		raise(t, end)
		if !ended(ctx, time.Minute) {
			t.Errorf("%s does not end the daemon", end)
		}
		// A second one is for a daemon that is stopping, and must have come
		// before nobody catches it any more.
		raise(t, end)
		<-seen
		<-seen
		done()
		signal.Stop(seen)
	}
}

func TestSignalsEndWithTheParent(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	ctx, _, done := untilSignal(parent)
	defer done()
	cancel()
	if !ended(ctx, time.Minute) {
		t.Error("the context goes on after its parent")
	}
}
