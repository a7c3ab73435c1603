// Package binaries manages the programs that pods run on: copies of runtime binaries by content,
// which pod runs on which copy, and the removal of unused copies.
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

// Config is the configuration of Binaries.
type Config struct {
	// Root is a directory that survives reboots.
	Root string
	// Supervisor and Pause are the installed berth-shim and berth-pause.
	Supervisor, Pause string
	// Reported returns the handlers that the daemon reports, Configured every handler that new pods
	// may run under, now or later.
	Reported, Configured func() []*handler.Definition
	Prober               *probe.Prober
	// Unreadable is set if the records of some pods cannot be read.
	Unreadable bool
	Log        *log.Entry
}

// Open copies berth's own programs, and registers the copies that pods run on.
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
			b.Copies.store.Record(one)
		}
	}
	b.Runtimes = NewRuntimes(b.Copies, c.Log)
	c.Prober.OnAnswer(b.Copies.Prepare)
	return b, nil
}

// Inspect keeps the binaries of current handlers before the first pod needs them, then verifies the
// copies that pods run on. It returns when that is done, or when the engine ends.
func (b *Binaries) Inspect() {
	ready := map[string]bool{}
	for _, d := range b.awaitHandlers() {
		ready[d.Digest()] = true
		b.warmUp(d)
	}
	// The binaries of all others are kept, too: these handlers may become ready later.
	for _, d := range b.config.Configured() {
		if !ready[d.Digest()] {
			b.warmUp(d)
		}
	}
	b.Copies.warmedUp.Store(true)
	seen := map[string]bool{}
	for _, s := range b.pods.Index.AllSandboxes() {
		for _, one := range s.Spec().Pinned.Binaries {
			if one.Kept == "" {
				warnReplaced(b.config.Log, s, one)
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
			// Fills the prober's cache, so that the next container does not wait for a probe.
			_, _ = b.Prober.Probe(b.pods.Background, b.Runtimes.Of(s.Spec()))
		}
	}
	b.Collector.Collect()
}

// handlersTimeout bounds the wait of a starting daemon for its first ready handler.
const handlersTimeout = 30 * time.Second

// awaitHandlers returns the ready handlers, or none if none becomes ready in time.
func (b *Binaries) awaitHandlers() []*handler.Definition {
	ctx, cancel := context.WithTimeout(b.pods.Background, handlersTimeout)
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

// warmUp probes a runtime and keeps its binary before the first pod needs it.
func (b *Binaries) warmUp(d *handler.Definition) {
	ctx, cancel := context.WithTimeout(b.pods.Background, warmUpTimeout)
	defer cancel()
	_, _, release, err := b.Copies.ForPod(ctx, d)
	if err == nil {
		release()
	} else if !errors.Is(err, context.Canceled) {
		b.config.Log.WithError(err).WithField("handler", d.Name).WithField("runtime", d.Path).Info("Failed to keep runtime of handler before its first pod")
	}
}
