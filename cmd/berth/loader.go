package main

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/config"
)

// loader reads the configuration of a running daemon, from the same places and with the same flags
// as at its start.
type loader struct {
	options config.Options
	// last is the last configuration that was loaded without mistakes.
	last   atomic.Pointer[config.Config]
	faults atomic.Pointer[[]string] // of the last InForce
}

// newLoader returns a loader that continues from the daemon's start configuration.
func newLoader(o config.Options, start *config.Config) *loader {
	l := &loader{options: o}
	l.last.Store(start)
	l.faults.Store(new([]string))
	return l
}

// Check implements daemon.Loader. The file is a drop-in of the management API, in DropInDir.
func (l *loader) Check(_ context.Context, file string, text []byte) error {
	_, err := l.read(map[string][]byte{file: text})
	return err
}

// Read implements daemon.Loader. The next Load still compares with the last loaded configuration.
func (l *loader) Read(context.Context) (*config.Config, error) { return l.read(nil) }

func (l *loader) read(overlay map[string][]byte) (*config.Config, error) {
	o := l.options
	o.Running, o.Overlay = l.last.Load(), overlay
	return config.Load(o)
}

func (l *loader) Load(ctx context.Context) (*config.Config, error) {
	cfg, err := l.read(nil)
	if err == nil {
		logNew(ctx, l.last.Swap(cfg), cfg)
	}
	return cfg, err
}

// logNew logs new problems and ignored settings of imported files. Neither is an error.
func logNew(ctx context.Context, before, now *config.Config) {
	for _, p := range now.Problems {
		if !slices.Contains(before.Problems, p) {
			log.G(ctx).WithField("problem", p.Error()).Warn("Skipping invalid part of the configuration")
		}
	}
	for _, n := range now.ImportNotes {
		if !slices.Contains(before.ImportNotes, n) {
			log.G(ctx).WithField("note", n.String()).Info("Ignoring unsupported setting in imported file")
		}
	}
}

func (l *loader) InForce(ctx context.Context, cfg *config.Config) {
	var faults []string
	if err := cfg.KeepAccepted(l.options); err != nil {
		log.G(ctx).WithError(err).WithField("file", l.options.AcceptedFile()).
			Error("Failed to keep the accepted configuration; a start needs files without mistakes")
		faults = []string{"cannot keep the accepted configuration, so a start with a mistake in the files fails: " + err.Error() + "; correct that, then run \"berth reload --wait\""}
	}
	l.faults.Store(&faults)
}

func (l *loader) Faults() []string { return *l.faults.Load() }

func (l *loader) Paths() []string { return l.last.Load().Watched() }

// applyLog applies the log settings of a reloaded configuration.
func applyLog(ctx context.Context, cfg *config.Config) {
	if err := setLog(cfg.Log); err != nil {
		log.G(ctx).WithError(err).Error("Failed to apply log settings; keeping the current ones")
	}
}
