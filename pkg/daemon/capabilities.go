package daemon

import (
	"context"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/remote"
)

// capabilitySource asks those for what handlers can do that run their pods.
type capabilitySource struct {
	engine Engine
	prober Prober
	pool   *remote.Pool
}

func (s capabilitySource) Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime) capability.Table {
	if d.Type == handler.CRI {
		return s.pool.Capabilities(ctx, d)
	}
	if rt == nil {
		return capability.Table{}
	}
	return s.engine.Capabilities(ctx, d, rt, s.prober.Proof(d, rt))
}
