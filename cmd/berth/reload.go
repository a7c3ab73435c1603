package main

import (
	"context"
	"sync/atomic"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/config"
)

// loader reads the configuration of a running daemon: from the same places and
// with the same flags as at its start, but strictly.
type loader struct {
	options config.Options
	// last is what was loaded last without a mistake.
	last atomic.Pointer[config.Config]
}

// newLoader goes on from the configuration that the daemon started with.
func newLoader(o config.Options, start *config.Config) *loader {
	o.TolerateDropIns = false
	l := &loader{options: o}
	l.last.Store(start)
	return l
}

// Load implements lifecycle.Loader.
func (l *loader) Load(context.Context) (*config.Config, error) {
	cfg, err := config.Load(l.options)
	if err == nil {
		l.last.Store(cfg)
	}
	return cfg, err
}

// Paths implements lifecycle.Loader.
func (l *loader) Paths() []string { return l.last.Load().Watched() }

// applyLog puts in force what a reloaded configuration says of the log.
func applyLog(ctx context.Context, cfg *config.Config) {
	if err := setLog(cfg.Log); err != nil {
		log.G(ctx).WithError(err).Error("The log stays as it is")
	}
}
