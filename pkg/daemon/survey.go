package daemon

import (
	"context"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// surveyed is an engine that tells what its handlers can do, also before it has
// recovered.
type surveyed interface {
	Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime, proof probe.Proof) capability.Table
}

// proofs are what canary pods did.
type proofs interface {
	Proof(d *handler.Definition, rt *probe.Runtime) probe.Proof
}

// surveyor asks those for what handlers can do that run their pods.
type surveyor struct {
	engine  surveyed // nil if it does not tell
	proofs  proofs   // nil if there are no canary pods
	remotes *remotes
}

func (d *Daemon) surveyor(engine any, remotes *remotes) lifecycle.Surveyor {
	s := surveyor{remotes: remotes}
	s.engine, _ = engine.(surveyed)
	s.proofs, _ = d.options.Prober.(proofs)
	return s
}

// Capabilities implements lifecycle.Surveyor.
func (s surveyor) Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime) capability.Table {
	if d.Type == handler.CRI {
		return s.remotes.pool.Capabilities(ctx, d)
	}
	if s.engine == nil || rt == nil {
		return capability.Table{}
	}
	var proof probe.Proof
	if s.proofs != nil {
		proof = s.proofs.Proof(d, rt)
	}
	return s.engine.Capabilities(ctx, d, rt, proof)
}
