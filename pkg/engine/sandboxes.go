package engine

// serveSandboxes puts together who serves the calls about pod sandboxes.
func (e *Engine) serveSandboxes(k *core) error {
	e.processes = &sandboxProcesses{
		layout: k.layout, background: k.background, settings: k.settings, runtimes: k.runtimes, tasks: k.tasks, exits: k.exits,
		burials: k.burials, prober: k.prober, tools: k.tools, shims: k.shims, events: k.events,
	}
	e.sandboxStops = &sandboxStops{
		layout: k.layout, background: k.background, objects: k.objects, names: k.names, labels: k.labels, records: k.pods,
		settings: k.settings, binaries: k.binaries, collector: k.collector, tools: k.tools, network: k.cni, shims: k.shims,
		processes: e.processes, inside: e.stops, events: k.events, hooks: k.hooks, plugins: k.plugins,
	}
	e.sandboxRuns = &sandboxRuns{
		layout: k.layout, background: k.background, boot: k.boot, objects: k.objects, names: k.names, labels: k.labels, clock: k.clock,
		records: k.pods, abilities: k.abilities, settings: k.settings, binaries: k.binaries, tools: k.tools, prober: k.prober,
		cni: k.cni, shims: k.shims, processes: e.processes, stops: e.sandboxStops, events: k.events, hooks: k.hooks, plugins: k.plugins,
	}
	e.sandboxResizing = &sandboxResizing{objects: k.objects, hooks: k.hooks, plugins: k.plugins}
	e.sandboxViews = &sandboxViews{objects: k.objects, runtimes: k.runtimes}
	return complete(e.processes, e.sandboxStops, e.sandboxRuns, e.sandboxResizing, e.sandboxViews)
}
