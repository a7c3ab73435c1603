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

// Pods contains the owners of a node's pods, and the counts of starts. It exists before anything is
// served, for components that count pods or change backends. All methods may be called at any time
// from any goroutine.
type Pods struct {
	registry *handler.Registry[Backend]
	owners   *owners
	queues   startQueues
	counts   startCounts
	// settings is the last request of UpdateRuntimeConfig, nil before the first.
	settings atomic.Pointer[runtimeapi.UpdateRuntimeConfigRequest]
}

// NewPods returns Pods without pods. A Router of these Pods routes by the registry.
func NewPods(registry *handler.Registry[Backend]) *Pods {
	return &Pods{registry: registry, owners: newOwners()}
}

// Adopt adds a backend with all its sandboxes and containers. Call it after the backend has
// recovered and before SetReady. Adopting a backend again adds its new objects.
func (p *Pods) Adopt(b Backend) { p.owners.adopt(b) }

// Backends returns every adopted backend. The caller may change the slice.
func (p *Pods) Backends() []Backend { return slices.Clone(p.owners.all()) }

// Find returns the owner of a sandbox or container by its ID or a unique prefix. The class of its
// error is ErrNotFound, or ErrInvalidArgument for an ambiguous prefix; that error lists the IDs.
func (p *Pods) Find(id string) (*Owner, error) {
	if id == "" {
		return nil, fmt.Errorf("the ID is empty; use the ID of a sandbox or container, or a prefix of it: %w", errdefs.ErrInvalidArgument)
	}
	owner, err := p.owners.byPrefix(id)
	if owner == nil && err == nil {
		err = fmt.Errorf("no sandbox or container has an ID with the prefix %q; \"berth pods\" lists the pods: %w", printable.Clip(id, fullID), errdefs.ErrNotFound)
	}
	return owner, err
}

// SandboxCounts counts the sandboxes of each handler, also stopped ones, and also of handlers that
// are in no table any more.
func (p *Pods) SandboxCounts() map[string]int { return p.owners.counts() }

// Starts returns the counts of each handler that was ever requested for a pod, or is in the
// current table; sorted by name.
func (p *Pods) Starts() []Starts { return p.queues.report(p.registry.Current().Names()) }

// BinaryStarts returns the counts of both binaries of each handler.
func (p *Pods) BinaryStarts() []BinaryStarts { return p.counts.report(p.registry.Current().Names()) }

// ApplySettings sends the last request of UpdateRuntimeConfig to a backend that was adopted while
// the node is in use. A newer request that arrives meanwhile is sent, too.
func (p *Pods) ApplySettings(ctx context.Context, b Backend) error {
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
