package router

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/observe"
)

// routes finds where new things go. Calls about what exists never come here.
type routes struct {
	registry *handler.Registry[Backend]
}

type route = handler.Route[Backend]

// forPod returns the route that a new sandbox of the pod uid takes, and the
// context to take it with, which has the Definition and the generation. It fails
// before anything is done: InvalidArgument for a name that no handler has,
// Unavailable for a handler that accepts no pods.
func (r routes) forPod(ctx context.Context, name, uid string) (context.Context, *route, error) {
	table := r.registry.Current()
	to, ok := table.Lookup(name)
	if !ok {
		return ctx, nil, table.UnknownError(name)
	}
	observe.SetHandler(ctx, to.Definition.Name)
	if !to.State.AcceptsPods() {
		return ctx, nil, closed(to)
	}
	d := chosen(to, uid)
	observe.SetBinary(ctx, d.BinaryName())
	return handler.WithGeneration(handler.WithDefinition(ctx, d), table.Generation()), to, nil
}

// chosen is the Definition that a pod gets. The same pod always gets the same
// one, as long as the share stays. Pure.
func chosen(to *route, uid string) *handler.Definition {
	if to.Candidate != nil && to.Definition.Candidate != nil && int(place100(uid)) < to.Definition.Candidate.Percent {
		return to.Candidate
	}
	return to.Definition
}

// place100 gives each pod a place from 0 to 99, evenly.
func place100(uid string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(uid))
	return mix(h.Sum64()) % 100
}

// mix spreads all bits over the lower ones (the finish of MurmurHash3): pods must
// keep their places over upgrades.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// forImage returns the backend that has the images of a handler, and the
// context to ask it with. Images of a handler that accepts no pods can still be
// looked at and removed, as long as something is known about the handler. The
// default handler always has a backend, because a node without images cannot
// even say how full its disk is.
func (r routes) forImage(ctx context.Context, name string) (context.Context, *route, error) {
	table := r.registry.Current()
	to, ok := table.Lookup(name)
	if !ok {
		return ctx, nil, table.UnknownError(name)
	}
	if name != "" {
		observe.SetHandler(ctx, to.Definition.Name)
	}
	if to.State.Phase != handler.NotReady || to.Definition.Type != "" {
		return handler.WithDefinition(ctx, to.Definition), to, nil
	}
	if name != "" {
		return ctx, nil, closed(to)
	}
	return ctx, to, nil
}

// asImage is the context of a call about an image of a handler's pods. The
// handler may be gone from the table; its pods keep their backend.
func (r routes) asImage(ctx context.Context, name string) (context.Context, error) {
	if to, ok := r.registry.Current().Lookup(name); ok {
		return handler.WithDefinition(ctx, to.Definition), nil
	}
	if to := r.standard(); to != nil {
		return handler.WithDefinition(ctx, to.Definition), nil
	}
	return ctx, fmt.Errorf("handler %q is not known any more: %w", name, errdefs.ErrUnavailable)
}

// standard returns the default handler's route: the one that speaks for the node.
func (r routes) standard() *route {
	to, _ := r.registry.Current().Lookup("")
	return to
}

// closed is the answer to a pod for a handler that accepts none.
func closed(r *route) error {
	reason := cmp.Or(r.State.Reason, "no reason given")
	return named(r.Definition.Name, fmt.Errorf("accepts no pods while it is %s: %s: %w", r.State.Phase, reason, errdefs.ErrUnavailable))
}
