package daemon

import (
	"slices"
	"sync"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/router"
)

// Handlers provides the engine with the current handlers and the other settings of new pods. Before
// the first plan it returns those of the configuration.
type Handlers struct {
	registry *handler.Registry[router.Backend]
	first    []*handler.Definition

	mu           sync.Mutex
	candidates   []*handler.Definition
	cgroupPrefix string
}

// use makes p the current plan.
func (k *Handlers) use(p *lifecycle.Plan) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.candidates, k.cgroupPrefix = p.Candidates, p.CgroupPrefix
}

// CgroupPrefix returns the prefix for the scope names of new pods.
func (k *Handlers) CgroupPrefix() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cgroupPrefix
}

// Usable returns the engine's handlers in any phase but NotReady.
func (k *Handlers) Usable() []*handler.Definition {
	return k.those(func(s handler.State) bool { return s.Phase != handler.NotReady })
}

// Accepting returns the engine's handlers that accept new pods.
func (k *Handlers) Accepting() []*handler.Definition { return k.those(handler.State.AcceptsPods) }

func (k *Handlers) those(wanted func(handler.State) bool) []*handler.Definition {
	table := k.registry.Current()
	if table.Generation() == 0 {
		return k.first
	}
	var definitions []*handler.Definition
	for _, r := range table.Routes() {
		if wanted(r.State) && r.Definition.Type != "" && r.Definition.Type != handler.CRI {
			definitions = append(definitions, r.Definition)
		}
	}
	return definitions
}

// Configured returns all handlers of the engine that new pods may get, including candidates and
// handlers that are not ready.
func (k *Handlers) Configured() []*handler.Definition {
	k.mu.Lock()
	all := slices.Clone(k.candidates)
	k.mu.Unlock()
	return slices.DeleteFunc(all, func(d *handler.Definition) bool { return d.Type == handler.CRI })
}
