package engine

// serveContainers puts together who serves the calls about containers.
func (e *Engine) serveContainers(k *core, limits *resources) error {
	e.logs = &logs{layout: k.layout, background: k.background, objects: k.objects, settings: k.settings, shims: k.shims}
	e.ends = &ends{
		layout: k.layout, background: k.background, clock: k.clock, events: k.events, logs: e.logs, runtimes: k.runtimes,
		tasks: k.tasks, exits: k.exits, burials: k.burials, mounts: k.mounts, hooks: k.hooks, plugins: k.plugins, shims: k.shims,
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
