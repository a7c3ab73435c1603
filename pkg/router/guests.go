package router

import (
	"context"

	"github.com/berth-cri/berth/pkg/handler"
)

// Guest is the place of a pod of berth's own among those of a handler.
type Guest struct {
	starts     *starts
	place      *place
	definition *handler.Definition
}

// Admit lets in a pod of berth's own as RunPodSandbox would a client's: when its
// handler takes pods, within max_pods, and in its turn under max_parallel_starts. It
// counts under both until Started and Leave. It runs by the handler's own binary,
// never by one in a rollout.
func (r *Router) Admit(ctx context.Context, name string) (*Guest, error) {
	s := r.starts
	_, to, err := s.routes.forPod(ctx, name, "")
	if err != nil {
		return nil, err
	}
	d := to.Definition
	p, err := s.lines.of(d.Name).enter(ctx, d, func() (settled, unsettled int) { return s.owners.live(d.Name) })
	if err != nil {
		return nil, named(d.Name, err)
	}
	g := &Guest{s, p, d}
	if p.waited {
		if _, to, err = s.routes.forPod(ctx, d.Name, ""); err != nil {
			g.Leave()
			return nil, err
		}
		g.definition = to.Definition
	}
	return g, nil
}

// Definition is what the pod runs by.
func (g *Guest) Definition() *handler.Definition { return g.definition }

// Started ends the start of the pod, which goes on to count as one.
func (g *Guest) Started() { g.place.stay(g.starts.limits(g.definition.Name)) }

// Leave gives the place back. It may be called at any time, and once.
func (g *Guest) Leave() { g.place.leave(g.starts.limits(g.definition.Name)) }
