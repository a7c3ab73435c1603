package engine

import (
	"cmp"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/streaming"
)

// serve puts together who serves the CRI's calls. What listens comes last: nothing
// fails after it.
func (e *Engine) serve(k *core) (err error) {
	limits := newResources(k.layout, k.settings, k.tasks)
	if k.plugins, err = openPlugins(k.config.Plugins, k.layout, k.config.Version, pluginNode{k.objects, k.hooks, limits}); err != nil {
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
	e.execs = execs{
		layout: k.layout, background: k.background, objects: k.objects, tasks: k.tasks, drain: k.config.ExecSyncDrainTimeout,
		commands: &gauge{limit: k.config.MaxExecSyncs}, answers: answers{newOpLock()},
	}
	open := sessions{execs: e.execs, runtimes: k.runtimes, shims: k.shims}
	if err := complete(e.execs, open); err != nil {
		return err
	}
	server, err := streaming.Serve(k.config.Streaming, open)
	e.streams = streams{k.objects, server}
	return err
}

// serveNode puts together who serves what is no call about one object.
func (e *Engine) serveNode(k *core) error {
	e.node = node{
		layout: k.layout, name: cmp.Or(k.config.RuntimeName, runtimeName), version: k.config.Version, snapshotter: k.config.Snapshotter,
		definitions: k.config.Definitions, settings: k.settings, abilities: k.abilities, binaries: k.binaries, prober: k.prober,
		cni: k.cni, features: &featureMemory{},
	}
	e.stats = stats{objects: k.objects, settings: k.settings, tasks: k.tasks, images: k.images, lanes: newLanes()}
	e.overheads = &overheads{objects: k.objects, settings: k.settings, shims: k.shims, canaries: e.canaries, stats: e.stats}
	e.events = events{k.broker, k.log}
	e.images = images{image.NewService(k.images)}
	return complete(e.node, e.stats, e.overheads, e.events)
}

// serveSandboxes puts together who serves the calls about pod sandboxes.
func (e *Engine) serveSandboxes(k *core) error {
	e.processes = &sandboxProcesses{
		layout: k.layout, background: k.background, settings: k.settings, runtimes: k.runtimes, tasks: k.tasks, exits: k.exits,
		burials: k.burials, prober: k.prober, tools: k.tools, shims: k.shims, events: k.events,
	}
	e.sandboxStops = &sandboxStops{
		layout: k.layout, background: k.background, objects: k.objects, names: k.names, labels: k.labels, records: k.pods,
		settings: k.settings, binaries: k.binaries, collector: k.collector, residue: k.residue, tools: k.tools, network: k.cni, shims: k.shims,
		processes: e.processes, inside: e.stops, events: k.events, hooks: k.hooks, plugins: k.plugins,
	}
	e.sandboxRuns = &sandboxRuns{
		layout: k.layout, background: k.background, boot: k.boot, objects: k.objects, names: k.names, labels: k.labels, clock: k.clock,
		records: k.pods, abilities: k.abilities, settings: k.settings, binaries: k.binaries, tools: k.tools, prober: k.prober,
		cni: k.cni, shims: k.shims, processes: e.processes, stops: e.sandboxStops, events: k.events, hooks: k.hooks, plugins: k.plugins,
	}
	e.canaries = &canaries{sandboxRuns: e.sandboxRuns, tasks: k.tasks, there: map[string]bool{}, staying: map[string]*staying{}}
	e.sandboxResizing = &sandboxResizing{objects: k.objects, hooks: k.hooks, plugins: k.plugins}
	e.sandboxViews = &sandboxViews{layout: k.layout, objects: k.objects, runtimes: k.runtimes}
	return complete(e.processes, e.sandboxStops, e.sandboxRuns, e.canaries, e.sandboxResizing, e.sandboxViews)
}

// serveContainers puts together who serves the calls about containers.
func (e *Engine) serveContainers(k *core, limits *resources) error {
	e.logs = &logs{layout: k.layout, background: k.background, objects: k.objects, settings: k.settings, shims: k.shims}
	e.ends = &ends{
		layout: k.layout, background: k.background, clock: k.clock, events: k.events, logs: e.logs, runtimes: k.runtimes,
		tasks: k.tasks, exits: k.exits, burials: k.burials, mounts: k.mounts, residue: k.residue, hooks: k.hooks, plugins: k.plugins, shims: k.shims,
	}
	specs := &specifier{
		layout: k.layout, objects: k.objects, settings: k.settings, runtimes: k.runtimes, mounts: k.mounts, prober: k.prober,
		cdiDirs: k.config.CDISpecDirs, hooks: k.hooks, plugins: k.plugins,
	}
	e.creation = &creation{
		layout: k.layout, objects: k.objects, names: k.names, labels: k.labels, clock: k.clock, records: k.ctrs, images: k.images,
		abilities: k.abilities, settings: k.settings, runtimes: k.runtimes, tasks: k.tasks, mounts: k.mounts, specs: specs,
		logs: e.logs, ends: e.ends, events: k.events, hooks: k.hooks, plugins: k.plugins,
	}
	e.starts = &starts{
		layout: k.layout, background: k.background, objects: k.objects, clock: k.clock, events: k.events, runtimes: k.runtimes,
		tasks: k.tasks, exits: k.exits, ends: e.ends, hooks: k.hooks, plugins: k.plugins,
	}
	e.stops = &stops{
		background: k.background, objects: k.objects, names: k.names, labels: k.labels, clock: k.clock, records: k.ctrs,
		events: k.events, runtimes: k.runtimes, tasks: k.tasks, ends: e.ends, hooks: k.hooks, plugins: k.plugins,
	}
	e.resizing = &resizing{objects: k.objects, resources: limits, hooks: k.hooks, plugins: k.plugins}
	e.checkpoints = &checkpoints{
		layout: k.layout, objects: k.objects, abilities: k.abilities, runtimes: k.runtimes, tasks: k.tasks,
		prober: k.prober, images: k.images,
	}
	e.containerViews = &containerViews{layout: k.layout, objects: k.objects, runtimes: k.runtimes}
	return complete(e.logs, e.ends, specs, e.creation, e.starts, e.stops, limits, e.resizing, e.checkpoints, e.containerViews)
}
