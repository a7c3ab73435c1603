package router

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
)

// Pods are the pods of a node: whose each is, and how the starts of each handler stand.
// They are there before anything is served, for whoever counts pods or changes
// backends. All methods may be called at any time from any goroutine.
type Pods struct {
	registry *handler.Registry[Backend]
	owners   *owners
	lines    lines
	counts   startCounts
	// settings are what UpdateRuntimeConfig said last, nil before.
	settings atomic.Pointer[runtimeapi.UpdateRuntimeConfigRequest]
}

// NewPods knows no pods yet. The registry is that of the routers that serve them.
func NewPods(registry *handler.Registry[Backend]) *Pods {
	return &Pods{registry: registry, owners: newOwners()}
}

// Adopt makes a backend known with all sandboxes and containers that it has.
// Call it after the backend has recovered and before SetReady. Adopting a
// backend again learns what it got meanwhile.
func (p *Pods) Adopt(b Backend) { p.owners.adopt(b) }

// Backends returns every backend that was adopted. The slice is the caller's.
func (p *Pods) Backends() []Backend { return slices.Clone(p.owners.all()) }

// Find returns the owner of a sandbox or container by its id or a unique
// beginning of it. The class is ErrNotFound, or ErrInvalidArgument for the
// beginning of several ids, which the text lists.
func (p *Pods) Find(id string) (*Owner, error) {
	if id == "" {
		return nil, fmt.Errorf("the ID is empty; use the ID of a sandbox or container, or a prefix of it: %w", errdefs.ErrInvalidArgument)
	}
	owner, err := p.owners.begun(id)
	if owner == nil && err == nil {
		err = fmt.Errorf("no sandbox or container has an ID with the prefix %q: %w", printable.Clip(id, fullID), errdefs.ErrNotFound)
	}
	return owner, err
}

// Live counts the sandboxes of each handler, including handlers that no table
// has any more.
func (p *Pods) Live() map[string]int { return p.owners.counts() }

// Starts tells how the starts of each handler stand that was ever asked for a
// pod, or is in the current table; sorted by name.
func (p *Pods) Starts() []Starts { return p.lines.report(p.registry.Current().Names()) }

// BinaryStarts returns the counts of both binaries of each handler.
func (p *Pods) BinaryStarts() []BinaryStarts { return p.counts.report(p.registry.Current().Names()) }

// Tell tells a backend that was adopted while the node is in use what all others
// were told by UpdateRuntimeConfig.
func (p *Pods) Tell(ctx context.Context, b Backend) error {
	for {
		last := p.settings.Load()
		if last == nil {
			return nil
		}
		if _, err := b.UpdateRuntimeConfig(ctx, last); err != nil {
			return err
		}
		if p.settings.Load() == last {
			return nil
		}
	}
}
