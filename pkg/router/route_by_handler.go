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

// routes selects the backend of new objects. Calls about existing objects go to their owner.
type routes struct {
	registry *handler.Registry[Backend]
}

type route = handler.Route[Backend]

// forPod returns the route for a new sandbox of the pod uid, and ctx with the Definition and the
// generation. It fails before anything is created: InvalidArgument for an unknown handler,
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

// chosen returns the Definition of a pod. The same pod always gets the same Definition while the
// percentage stays. Pure.
func chosen(to *route, uid string) *handler.Definition {
	if to.Candidate != nil && to.Definition.Candidate != nil && int(bucket(uid)) < to.Definition.Candidate.Percent {
		return to.Candidate
	}
	return to.Definition
}

// bucket distributes pods evenly over 0 to 99.
func bucket(uid string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(uid))
	return mix(h.Sum64()) % 100
}

// mix spreads all bits over the lower ones (the first half of MurmurHash3's finalizer). It must not
// change: pods keep their buckets across upgrades.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}

// forImage returns the route to a handler's image store, and the context for its calls. Images of a
// handler that accepts no pods can still be listed and removed if its Definition is known. The
// default handler always has a backend, because a node without an image store cannot report its
// disk usage.
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

// asImage returns the context of a call about an image for a handler's pods. If the table no longer
// has the handler, it uses the default handler's Definition: the pods still have their backend.
func (r routes) asImage(ctx context.Context, name string) (context.Context, error) {
	if to, ok := r.registry.Current().Lookup(name); ok {
		return handler.WithDefinition(ctx, to.Definition), nil
	}
	if to := r.standard(); to != nil {
		return handler.WithDefinition(ctx, to.Definition), nil
	}
	return ctx, fmt.Errorf("handler %q is not known any more: %w", name, errdefs.ErrUnavailable)
}

// standard returns the default handler's route.
func (r routes) standard() *route {
	to, _ := r.registry.Current().Lookup("")
	return to
}

// closed returns the error of a handler that accepts no pods.
func closed(r *route) error {
	reason := cmp.Or(r.State.Reason, "no reason given")
	return named(r.Definition.Name, fmt.Errorf("accepts no pods while it is %s: %s: %w", r.State.Phase, reason, errdefs.ErrUnavailable))
}
