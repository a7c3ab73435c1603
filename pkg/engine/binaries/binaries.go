// Package binaries knows the programs that pods run on: copies of runtime binaries by
// their content, which pod runs on which, and which nobody needs any more.
package binaries

import (
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

	inspection *inspection
}

// Handlers are those of the daemon.
type Handlers struct {
	// Told are those that the daemon reports; Configured all that new pods may come to
	// run under.
	Told, Configured func() []*handler.Definition
}

// Config is what the programs of pods depend on.
type Config struct {
	// Root is kept over reboots.
	Root string
	// Supervisor and Pause are the installed berth-shim and berth-pause.
	Supervisor, Pause string
	Handlers          Handlers
	Prober            *probe.Prober
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
	b := &Binaries{Tools: tools, Prober: c.Prober}
	b.Collector = &collector{
		pods: pods, log: c.Log, tools: tools, unreadable: c.Unreadable, configured: c.Handlers.Configured,
	}
	b.Copies = newCopies(tools.dir, c.Prober, tools.NoExec, c.Log, func() { go b.Collector.collectUnlessClosed() })
	b.Collector.binaries = b.Copies
	for _, o := range pods.Sandboxes.List() {
		for _, one := range o.Spec().Pinned.Binaries {
			b.Copies.store.Know(one)
		}
	}
	b.Runtimes = NewRuntimes(b.Copies, c.Log)
	c.Prober.OnAnswer(b.Copies.Prepare)
	b.inspection = &inspection{
		pods: pods, log: c.Log, binaries: b.Copies, runtimes: b.Runtimes, collector: b.Collector,
		prober: c.Prober, definitions: c.Handlers.Told, configured: c.Handlers.Configured,
	}
	return b, nil
}

// Inspect looks at the binaries of pods and handlers, and keeps copies of those that
// have none. It returns when it has, or the engine ends.
func (b *Binaries) Inspect() { b.inspection.run() }
