package main

import (
	"context"
	"os"
	"os/signal"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// untilSignal returns a context that ends with SIGTERM or SIGINT. Signals are
// caught, never ignored, because children would inherit that:
//
//   - SIGHUP must not end the daemon;
//   - SIGPIPE comes when what reads the log goes away, and Go ends the process
//     by it unless it is caught.
func untilSignal(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals, done := make(chan os.Signal, 16), make(chan struct{})
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGPIPE)
	go act(ctx, signals, done, cancel)
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		cancel()
	}
}

// act goes on while the daemon stops: stopping has a bound of its own, and a
// second signal does not make it faster.
func act(ctx context.Context, signals <-chan os.Signal, done <-chan struct{}, stop func()) {
	for {
		select {
		case <-done:
			return
		case s := <-signals:
			react(ctx, s, stop)
		}
	}
}

func react(ctx context.Context, s os.Signal, stop func()) {
	switch s {
	case unix.SIGTERM, unix.SIGINT:
		log.G(ctx).WithField("signal", s.String()).Info("Stopping")
		stop()
	case unix.SIGHUP:
		log.G(ctx).Warn("SIGHUP does not reload the configuration yet; restart the daemon to apply changes, pods keep running")
	}
}
