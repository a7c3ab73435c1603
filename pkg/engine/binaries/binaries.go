// Package binaries knows the programs that pods run on: copies of runtime binaries by
// their content, which pod runs on which, and which nobody needs any more.
package binaries

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// Binaries are the programs of pods.
type Binaries struct {
	Tools     tools
	Prober    *probe.Prober
	Copies    *copies
	Runtimes  *Runtimes
	Collector *collector

	pods   *pod.Registry
	config Config
}

// Config is what the programs of pods depend on.
type Config struct {
	// Root is kept over reboots.
	Root string
	// Supervisor and Pause are the installed berth-shim and berth-pause.
	Supervisor, Pause string
	// Reported returns the handlers that the daemon reports, Configured all that new pods may
	// come to run under.
	Reported, Configured func() []*handler.Definition
	Prober               *probe.Prober
	// Unreadable says that there are pods whose records cannot be read.
	Unreadable bool
	Log        *log.Entry
}

// Open copies berth's own programs, and takes up the copies that pods run on.
func Open(pods *pod.Registry, c Config) (*Binaries, error) {
	tools, err := newTools(c.Root, c.Supervisor, c.Pause, c.Log)
	if err != nil {
		return nil, err
	}
	b := &Binaries{Tools: tools, Prober: c.Prober, pods: pods, config: c}
	b.Collector = &collector{
		pods: pods, log: c.Log, tools: tools, unreadable: c.Unreadable, configured: c.Configured,
	}
	b.Copies = newCopies(tools.dir, c.Prober, tools.NoExec, c.Log, func() { go b.Collector.Collect() })
	b.Collector.binaries = b.Copies
	for _, o := range pods.Sandboxes.List() {
		for _, one := range o.Spec().Pinned.Binaries {
			b.Copies.store.Know(one)
		}
	}
	b.Runtimes = NewRuntimes(b.Copies, c.Log)
	c.Prober.OnAnswer(b.Copies.Prepare)
	return b, nil
}

// Inspect takes up the binaries of today's handlers, and then reads those that pods were made with,
// before they are needed. It keeps copies of those that have none. It returns when it has, or the
// engine ends.
func (b *Binaries) Inspect() {
	ready := map[string]bool{}
	for _, d := range b.awaitHandlers() {
		ready[d.Digest()] = true
		b.takeUp(d)
	}
	// What others run on, and candidates, are kept as well: a handler that is
	// not ready now may be so again.
	for _, d := range b.config.Configured() {
		if !ready[d.Digest()] {
			b.takeUp(d)
		}
	}
	b.Copies.takenUp.Store(true)
	seen := map[string]bool{}
	for _, s := range b.pods.Index.AllSandboxes() {
		for _, one := range s.Spec().Pinned.Binaries {
			if one.Kept == "" {
				tellChanged(b.config.Log, s, one)
				continue
			}
			if seen[one.Kept] || b.pods.Background.Err() != nil {
				continue
			}
			seen[one.Kept] = true
			if err := b.Copies.verify(one); err != nil {
				b.config.Log.WithError(err).WithField("runtime", one.Path).Error("Failed to verify the kept runtime of pods")
			}
		}
		if len(s.Spec().Pinned.Binaries) > 0 {
			// So that the next container does not wait for the answer.
			_, _ = b.Prober.Probe(b.pods.Background, b.Runtimes.Of(s.Spec()))
		}
	}
	b.Collector.Collect()
}

// handlersPatience is how long a daemon that starts is given to find out which
// handlers are ready.
const handlersPatience = 30 * time.Second

// awaitHandlers returns the handlers that are ready; none only if none becomes so.
func (b *Binaries) awaitHandlers() []*handler.Definition {
	ctx, cancel := context.WithTimeout(b.pods.Background, handlersPatience)
	defer cancel()
	for {
		if all := b.config.Reported(); len(all) > 0 {
			return all
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil
		}
	}
}

// takeUp asks a runtime, and keeps it, before the first pod needs it.
func (b *Binaries) takeUp(d *handler.Definition) {
	ctx, cancel := context.WithTimeout(b.pods.Background, takeUpTimeout)
	defer cancel()
	_, _, release, err := b.Copies.ForPod(ctx, d)
	if err == nil {
		release()
	} else if !errors.Is(err, context.Canceled) {
		b.config.Log.WithError(err).WithField("handler", d.Name).WithField("runtime", d.Path).Info("Runtime of handler did not answer")
	}
}
