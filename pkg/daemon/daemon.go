// Package daemon assembles berth's parts and runs them. The command line and signals are handled by
// the caller, so that a test can start a whole daemon on a temporary socket.
//
// New only checks the options. Start serves, and returns when pods are recovered and calls are
// served; until then calls are rejected. Stop ends everything in the reverse order. Pods keep
// running: they outlive the daemon. Run calls Start, waits, and calls Stop.
package daemon

import (
	"context"
	"errors"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/lifecycle"
)

// New checks the options.
func New(o Options) (*Daemon, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	return &Daemon{options: o, notify: notifier{o.NotifySocket}, failed: make(chan error, 1), life: life, end: end, requested: make(chan lifecycle.Trigger, maxRequested)}, nil
}

// Run starts the daemon, waits for the end of ctx or a fatal error, and stops it. The end of ctx is
// not an error, not even during Start.
func (d *Daemon) Run(ctx context.Context) error {
	err := d.Start(ctx)
	switch {
	case err == nil:
		select {
		case <-ctx.Done():
		case err = <-d.failed:
		}
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		err = nil
	}
	return errors.Join(err, d.Stop(ctx))
}

// Start serves. On failure it undoes its steps.
func (d *Daemon) Start(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.started {
		return d.startErr
	}
	d.started = true
	if d.stopped {
		d.startErr = errors.New("the daemon was stopped before startup finished")
		return d.startErr
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(d.life, cancel)
	if d.startErr = d.setUp(ctx); d.startErr != nil {
		d.startErr = errors.Join(d.startErr, d.stop(ctx))
	}
	return d.startErr
}

// Stop ends the daemon within StopTimeout, even if ctx, which only carries the log, has ended. A
// running Start ends first.
func (d *Daemon) Stop(ctx context.Context) error {
	d.end()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.stop(ctx)
}

// stop is Stop with mu held.
func (d *Daemon) stop(ctx context.Context) error {
	if d.stopped {
		return d.stopErr
	}
	d.stopped = true
	d.end()
	d.notify.send(ctx, stopping)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.options.StopTimeout)
	defer cancel()
	d.stopErr = d.teardown.run(ctx)
	log.G(ctx).Info("Stopped")
	return d.stopErr
}
