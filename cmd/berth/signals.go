package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/lifecycle"
)

// untilSignal returns a context that ends with SIGTERM or SIGINT, and the SIGHUPs of which
// one waits for its reload: a reload that has not begun yet sees everything. Signals are
// caught, never ignored, because children would inherit that. They stay caught while the
// daemon stops: stopping has a bound of its own, and a second signal does not make it
// faster.
func untilSignal(ctx context.Context) (_ context.Context, hangups <-chan os.Signal, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ends, reloads, pipes := make(chan os.Signal, 1), make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(ends, unix.SIGTERM, unix.SIGINT)
	signal.Notify(reloads, unix.SIGHUP)
	// It comes when what reads the log goes away. Go ends the process by it unless it is caught.
	signal.Notify(pipes, unix.SIGPIPE)
	go func() {
		select {
		case s := <-ends:
			log.G(ctx).WithField("signal", s.String()).Info("Stopping")
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, reloads, func() {
		signal.Stop(ends)
		signal.Stop(reloads)
		signal.Stop(pipes)
		cancel()
	}
}

// reloadOn asks for a reload after each hangup, also after one that came before the daemon
// was there, until ctx ends.
func reloadOn(ctx context.Context, hangups <-chan os.Signal, reload func(lifecycle.Trigger)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			reload(lifecycle.TriggerSignal)
		}
	}
}
