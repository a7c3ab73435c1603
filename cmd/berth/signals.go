package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/lifecycle"
)

// untilSignal returns a context that ends with SIGTERM or SIGINT. Signals are
// caught, never ignored, because children would inherit that:
//
//   - SIGHUP puts something into hangups, unless something is there, which has
//     room for one;
//   - SIGPIPE comes when what reads the log goes away, and Go ends the process
//     by it unless it is caught.
func untilSignal(ctx context.Context, hangups chan<- struct{}) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals, done := make(chan os.Signal, 16), make(chan struct{})
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	go act(ctx, signals, done, hangups, cancel)
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// act goes on while the daemon stops: stopping has a bound of its own, and a
// second signal does not make it faster.
func act(ctx context.Context, signals <-chan os.Signal, done <-chan struct{}, hangups chan<- struct{}, stop func()) {
	for {
		select {
		case <-done:
			return
		case s := <-signals:
			react(ctx, s, hangups, stop)
		}
	}
}

func react(ctx context.Context, s os.Signal, hangups chan<- struct{}, stop func()) {
	switch s {
	case unix.SIGTERM, unix.SIGINT:
		log.G(ctx).WithField("signal", s.String()).Info("Stopping")
		stop()
	case unix.SIGHUP:
		select {
		case hangups <- struct{}{}:
		default: // a reload that has not begun yet will see everything
		}
	}
}

// reloadOn asks for a reload after each hangup, also after one that came before
// there was anybody to ask, until ctx ends.
func reloadOn(ctx context.Context, hangups <-chan struct{}, reload func(lifecycle.Trigger)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			reload(lifecycle.TriggerSignal)
		}
	}
}
