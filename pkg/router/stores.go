package router

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// patience is how long a call waits for backends that it can do without.
const patience = 2 * time.Second

// others are the stores beside the default handler's, if a call is about all of
// them because it names no handler.
func (i images) others(image *runtimeapi.ImageSpec) []Backend {
	if image.GetRuntimeHandler() != "" {
		return nil
	}
	return i.owners.beside(i.routes.standard().Backend)
}

// used says whether pods run from a store and a handler leads to it.
func (i images) used(b Backend) bool {
	leads := func(r *route) bool { return r.Backend.ID() == b.ID() }
	return slices.ContainsFunc(i.routes.registry.Current().Routes(), leads) && len(i.owners.of(b)) > 0
}

// said is what one backend answered.
type said[P any] struct {
	backend Backend
	answer  P
	err     error
}

// askEach asks several backends at once. It waits for none beyond patience but the
// first, if that is one that the call cannot do without.
func askEach[Q, R any, P interface{ *R }](ctx context.Context, first Backend, others []Backend, req Q,
	call func(Backend, context.Context, Q) (P, error),
) []said[P] {
	backends := others
	if first != nil {
		backends = append([]Backend{first}, others...)
	}
	bound, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answers, _ := askAll(ctx, backends, func(ctx context.Context, b Backend) (said[P], error) {
		if first == nil || b.ID() != first.ID() {
			ctx = bound
		}
		answer, err := call(b, ctx, req)
		return said[P]{b, answer, err}, nil
	})
	return answers
}

// askPrompt asks those stores that answer at present. One that fails, or not in
// time, is left out: its images are of no use while it does.
func askPrompt[Q, R any, P interface{ *R }](ctx context.Context, stores []Backend, req Q,
	call func(Backend, context.Context, Q) (P, error),
) []said[P] {
	return slices.DeleteFunc(askEach(ctx, nil, prompts(stores), req, call), func(s said[P]) bool { return s.err != nil })
}

// prompts are those stores that answer at present.
func prompts(stores []Backend) []Backend {
	return slices.DeleteFunc(slices.Clone(stores), func(b Backend) bool { return !prompt(b) })
}

// askStores asks the default handler's store and others. One that fails is left
// out, unless it is the default's and fails for another reason than that it is
// away, or all do.
func askStores[Q, R any, P interface{ *R }](ctx context.Context, i images, others []Backend, req Q,
	call func(Backend, context.Context, Q) (P, error),
) ([]P, error) {
	ctx, to, err := i.routes.forImage(ctx, "")
	if err != nil {
		return nil, err
	}
	var all []P
	var failed error
	for at, s := range askEach(ctx, to.Backend, others, req, call) {
		switch {
		case s.err == nil:
			all = append(all, s.answer)
		case at == 0 && !away(ctx, s.err):
			return nil, s.err
		case failed == nil:
			failed = s.err
		}
	}
	if len(all) == 0 {
		return nil, failed
	}
	return all, nil
}

// away says whether err is the silence of a store, and not the end of the caller.
func away(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded || errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded)
}
