// Package pod contains sandboxes and containers as data: their records, their plan, the index of
// those that callers can see, and their paths. It runs no processes.
package pod

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/engine/procfs"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/store"
)

// Registry is the engine's state of its pods. It is safe for concurrent use.
type Registry struct {
	Layout
	Index  *Index
	Names  *reserve.Names
	Labels *reserve.Labels
	Clock  *Clock
	// Sandboxes and Containers are the records of all objects, also of those that callers cannot
	// see.
	Sandboxes  *SandboxRecords
	Containers *ContainerRecords
	// Boot is this boot of the node, by the kernel's random id.
	Boot string
	// Background ends with the engine.
	Background context.Context //nolint:containedctx // the life of background work
}

// Broken are records that could not be read.
type Broken struct{ Sandboxes, Containers []store.Broken }

// Open reads the records below root, and creates the directories of pods below state.
func Open(background context.Context, root, state string) (*Registry, Broken, error) {
	r := &Registry{
		Layout: Layout{Root: root, State: state},
		Index:  NewIndex(), Names: reserve.NewNames(), Labels: reserve.NewLabels(), Clock: &Clock{}, Background: background,
	}
	var broken Broken
	for _, d := range []struct{ name, path string }{{"root", root}, {"state", state}} {
		if !filepath.IsAbs(d.path) {
			return nil, broken, fmt.Errorf("engine: %s %q must be an absolute path", d.name, d.path)
		}
	}
	for _, d := range []string{root, state, r.SandboxDir(""), r.ContainerDir("")} {
		if err := os.MkdirAll(d, 0o711); err != nil {
			return nil, broken, fmt.Errorf("engine: %w", err)
		}
	}
	var err error
	if r.Boot, err = procfs.BootID(); err != nil {
		return nil, broken, fmt.Errorf("engine: %w", err)
	}
	if r.Sandboxes, broken.Sandboxes, err = store.Open[SandboxSpec, SandboxStatus](filepath.Join(root, "records", "sandboxes")); err != nil {
		return nil, broken, err
	}
	if r.Containers, broken.Containers, err = store.Open[ContainerSpec, ContainerStatus](filepath.Join(root, "records", "containers")); err != nil {
		return nil, broken, err
	}
	return r, broken, nil
}
