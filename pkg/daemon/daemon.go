// Package daemon puts the parts together and runs them: it is the program,
// without command line and without signals, so that a test can start the whole
// on a temporary socket.
//
// New only wires. Start serves, and returns when the node's pods are recovered
// and calls are answered; until then they are refused. Stop ends everything in
// the reverse order. Pods are not touched by either: they outlive the daemon.
// Run is Start, waiting, and Stop.
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
	return &Daemon{options: o, notify: notifier{o.NotifySocket}, failed: make(chan error, 1), life: life, end: end, wished: make(chan lifecycle.Trigger, maxWished)}, nil
}

// Run starts, waits for ctx to end or for something to fail, and stops. That ctx
// ends is no error, also if it does while the daemon starts.
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

// Start serves. When it fails, what it did is undone.
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

// Stop ends the daemon within the time that Options allow, also if ctx, which
// only carries the log, has ended. A Start that is at work ends first.
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
