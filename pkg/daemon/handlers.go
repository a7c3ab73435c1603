package daemon

import (
	"slices"
	"sync"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/router"
)

// Handlers are those of the moment, as an engine may ask for them, and what else of a plan
// new pods get: those of the configuration before there is a first plan.
type Handlers struct {
	registry *handler.Registry[router.Backend]
	first    []*handler.Definition

	mu           sync.Mutex
	candidates   []*handler.Definition
	cgroupPrefix string
}

// use makes a plan the one of the moment.
func (k *Handlers) use(p *lifecycle.Plan) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.candidates, k.cgroupPrefix = p.Candidates, p.CgroupPrefix
}

// CgroupPrefix returns what the names of scopes of new pods begin with.
func (k *Handlers) CgroupPrefix() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cgroupPrefix
}

// Told returns the handlers in any phase but NotReady.
func (k *Handlers) Told() []*handler.Definition {
	return k.those(func(s handler.State) bool { return s.Phase != handler.NotReady })
}

// Accepting returns the handlers that take new pods.
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

// Configured returns all handlers of the engine's that new pods may come to run under: not
// ready ones too, and candidates.
func (k *Handlers) Configured() []*handler.Definition {
	k.mu.Lock()
	all := slices.Clone(k.candidates)
	k.mu.Unlock()
	return slices.DeleteFunc(all, func(d *handler.Definition) bool { return d.Type == handler.CRI })
}
