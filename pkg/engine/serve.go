package engine

import (
	"cmp"

	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/events"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/overheads"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podstats"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/selfcheck"
	"github.com/berth-cri/berth/pkg/engine/session"
	"github.com/berth-cri/berth/pkg/engine/status"
	"github.com/berth-cri/berth/pkg/engine/streaming"
)

// serve puts together who serves the CRI's calls. What listens comes last: nothing
// fails after it.
func (e *Engine) serve(k *core) (err error) {
	limits := container.NewResources(k.Layout, k.settings, k.tasks)
	c := k.config.Plugins
	c.Name, c.Version, c.LinkDir = runtimeName, k.config.Version, k.PluginLinks()
	if k.plugins, err = nri.Open(c, container.PluginNode{k.objects, k.hooks, limits}); err != nil {
		return err
	}
	k.closers = append(k.closers, k.plugins)
	if err := e.serveContainers(k, limits); err != nil {
		return err
	}
	if err := e.serveSandboxes(k); err != nil {
		return err
	}
	if err := e.serveNode(k); err != nil {
		return err
	}
	e.Execs = session.Execs{
		Layout: k.Layout, Background: k.background, Objects: k.objects, Tasks: k.tasks, Drain: k.config.ExecSyncDrainTimeout,
		Commands: &session.Gauge{Limit: k.config.MaxExecSyncs}, Answers: session.Answers{pod.NewOpLock()},
	}
	open := session.Sessions{Execs: e.Execs, Runtimes: k.runtimes, Shims: k.shims}
	if err := complete(e.Execs, open); err != nil {
		return err
	}
	server, err := streaming.Serve(k.config.Streaming, open)
	e.Streams = session.Streams{k.objects, server}
	return err
}

// serveNode puts together who serves what is no call about one object.
func (e *Engine) serveNode(k *core) error {
	e.Node = status.Node{
		Layout: k.Layout, RuntimeName: cmp.Or(k.config.RuntimeName, runtimeName), RuntimeVersion: k.config.Version, Snapshotter: k.config.Settings.Snapshotter,
		Definitions: k.config.Definitions, Settings: k.settings, Abilities: k.abilities, Binaries: k.binaries, Prober: k.prober,
		Cni: k.cni, Features: &status.FeatureMemory{},
	}
	e.Stats = podstats.Stats{Objects: k.objects, Settings: k.settings, Tasks: k.tasks, Images: k.images, Lanes: podstats.NewLanes()}
	e.overheads = &overheads.Readings{Objects: k.objects, Settings: k.settings, Shims: k.shims, Canaries: e.canaries, Stats: e.Stats}
	e.Calls = events.Calls{k.broker, k.log}
	e.images = images{image.NewService(k.images)}
	return complete(e.Node, e.Stats, e.overheads, e.Calls)
}

// serveSandboxes puts together who serves the calls about pod sandboxes.
func (e *Engine) serveSandboxes(k *core) error {
	e.processes = &sandbox.Processes{
		Layout: k.Layout, Background: k.background, Settings: k.settings, Runtimes: k.runtimes, Tasks: k.tasks, Exits: k.exits,
		Burials: k.burials, Prober: k.prober, Tools: k.tools, Shims: k.shims, Events: k.events,
	}
	e.sandboxes.Stops = &sandbox.Stops{
		Layout: k.Layout, Background: k.background, Objects: k.objects, Names: k.names, Labels: k.labels, Records: k.pods,
		Settings: k.settings, Binaries: k.binaries, Collector: k.collector, Residue: k.residue, Tools: k.tools, Network: k.cni, Shims: k.shims,
		Processes: e.processes, Inside: e.containers.Stops, Events: k.events, Hooks: k.hooks, Plugins: k.plugins,
	}
	e.sandboxes.Runs = &sandbox.Runs{
		Layout: k.Layout, Background: k.background, Boot: k.boot, Objects: k.objects, Names: k.names, Labels: k.labels, Clock: k.clock,
		Records: k.pods, Abilities: k.abilities, Settings: k.settings, Binaries: k.binaries, Tools: k.tools, Prober: k.prober,
		Cni: k.cni, Shims: k.shims, Processes: e.processes, Stops: e.sandboxes.Stops, Events: k.events, Hooks: k.hooks, Plugins: k.plugins,
	}
	e.canaries = &selfcheck.Pods{Runs: e.sandboxes.Runs, Tasks: k.tasks, There: map[string]bool{}, Staying: map[string]*selfcheck.Staying{}}
	e.sandboxes.Resizing = &sandbox.Resizing{Objects: k.objects, Hooks: k.hooks, Plugins: k.plugins}
	e.sandboxes.Views = &sandbox.Views{Layout: k.Layout, Objects: k.objects, Runtimes: k.runtimes}
	return complete(e.processes, e.sandboxes.Stops, e.sandboxes.Runs, e.canaries, e.sandboxes.Resizing, e.sandboxes.Views)
}

// serveContainers puts together who serves the calls about containers.
func (e *Engine) serveContainers(k *core, limits *container.Resources) error {
	e.containers.Logs = &container.Logs{Layout: k.Layout, Background: k.background, Objects: k.objects, Settings: k.settings, Shims: k.shims}
	e.ends = &container.Ends{
		Layout: k.Layout, Background: k.background, Clock: k.clock, Events: k.events, Logs: e.containers.Logs, Runtimes: k.runtimes,
		Tasks: k.tasks, Exits: k.exits, Burials: k.burials, Mounts: k.mounts, Residue: k.residue, Hooks: k.hooks, Plugins: k.plugins, Shims: k.shims,
	}
	specs := &container.Specifier{
		Layout: k.Layout, Objects: k.objects, Settings: k.settings, Runtimes: k.runtimes, Mounts: k.mounts, Prober: k.prober,
		CdiDirs: k.config.CDISpecDirs, Hooks: k.hooks, Plugins: k.plugins,
	}
	e.containers.Creation = &container.Creation{
		Layout: k.Layout, Objects: k.objects, Names: k.names, Labels: k.labels, Clock: k.clock, Records: k.ctrs, Images: k.images,
		Abilities: k.abilities, Settings: k.settings, Runtimes: k.runtimes, Tasks: k.tasks, Mounts: k.mounts, Specs: specs,
		Logs: e.containers.Logs, Ends: e.ends, Events: k.events, Hooks: k.hooks, Plugins: k.plugins,
	}
	e.containers.Starts = &container.Starts{
		Layout: k.Layout, Background: k.background, Objects: k.objects, Clock: k.clock, Events: k.events, Runtimes: k.runtimes,
		Tasks: k.tasks, Exits: k.exits, Ends: e.ends, Hooks: k.hooks, Plugins: k.plugins,
	}
	e.containers.Stops = &container.Stops{
		Background: k.background, Objects: k.objects, Names: k.names, Labels: k.labels, Clock: k.clock, Records: k.ctrs,
		Events: k.events, Runtimes: k.runtimes, Tasks: k.tasks, Ends: e.ends, Hooks: k.hooks, Plugins: k.plugins,
	}
	e.containers.Resizing = &container.Resizing{Objects: k.objects, Resources: limits, Hooks: k.hooks, Plugins: k.plugins}
	e.containers.Checkpoints = &container.Checkpoints{
		Layout: k.Layout, Objects: k.objects, Abilities: k.abilities, Runtimes: k.runtimes, Tasks: k.tasks,
		Prober: k.prober, Images: k.images,
	}
	e.containers.Views = &container.Views{Layout: k.Layout, Objects: k.objects, Runtimes: k.runtimes}
	return complete(e.containers.Logs, e.ends, specs, e.containers.Creation, e.containers.Starts, e.containers.Stops, limits, e.containers.Resizing, e.containers.Checkpoints, e.containers.Views)
}
