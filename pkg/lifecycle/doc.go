// Package lifecycle keeps the table that pods are routed by true to the
// configuration, to what operators said, and to the machine.
//
//	m, err := lifecycle.New(ctx, lifecycle.Options{Config: cfg, Loader: l, Prober: p, Live: r, Publisher: t, Dir: root})
//	defer m.Close()
//	m.Start()          // probes in the background while pods are recovered
//	err = m.Ready(ctx) // publishes what was found, watches, reloads
//	outcome, err := m.Reload(ctx, lifecycle.TriggerAdmin)
//
// A Manager is the one owner of four facts: the configuration that is in force,
// the intents of operators (cordon, drain), what probes found, and the table
// that follows from them. Everything that changes one of the first three makes a
// new Plan, by pure functions, and hands it to the Publisher before anybody can
// see it; what fails on the way changes nothing.
//
// Its parts stand on each other in one order: background, store (the truth and its
// plan), rollouts, probes, reloader, Manager. Each knows those before it.
//
// A reload reads all files, checks all of them, probes what changed, and only
// then takes the lock. A file with a mistake changes nothing.
package lifecycle
