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

// optionalTimeout is how long a call waits for backends that it can do without.
const optionalTimeout = 2 * time.Second

// others returns all stores but the default handler's, or none if the image names a handler.
func (i images) others(image *runtimeapi.ImageSpec) []Backend {
	if image.GetRuntimeHandler() != "" {
		return nil
	}
	return i.owners.beside(i.routes.standard().Backend)
}

// used reports whether pods run from a store and a handler in the table uses it.
func (i images) used(b Backend) bool {
	leads := func(r *route) bool { return r.Backend.ID() == b.ID() }
	return slices.ContainsFunc(i.routes.registry.Current().Routes(), leads) && len(i.owners.of(b)) > 0
}

// reply is the answer or error of one backend.
type reply[P any] struct {
	backend Backend
	answer  P
	err     error
}

// askEach asks several backends at once. It waits at most optionalTimeout for each except the
// backend first, which the call requires; first may be nil.
func askEach[Q, R any, P interface{ *R }](ctx context.Context, first Backend, others []Backend, req Q,
	call func(Backend, context.Context, Q) (P, error),
) []reply[P] {
	backends := others
	if first != nil {
		backends = append([]Backend{first}, others...)
	}
	bound, cancel := context.WithTimeout(ctx, optionalTimeout)
	defer cancel()
	answers, _ := askAll(ctx, backends, func(ctx context.Context, b Backend) (reply[P], error) {
		if first == nil || b.ID() != first.ID() {
			ctx = bound
		}
		answer, err := call(b, ctx, req)
		return reply[P]{b, answer, err}, nil
	})
	return answers
}

// askResponsive asks the responsive stores. A store that fails or times out is left out, because
// its images cannot be used meanwhile.
func askResponsive[Q, R any, P interface{ *R }](ctx context.Context, stores []Backend, req Q,
	call func(Backend, context.Context, Q) (P, error),
) []reply[P] {
	return slices.DeleteFunc(askEach(ctx, nil, responsiveOf(stores), req, call), func(s reply[P]) bool { return s.err != nil })
}

// responsiveOf returns the responsive stores.
func responsiveOf(stores []Backend) []Backend {
	return slices.DeleteFunc(slices.Clone(stores), func(b Backend) bool { return !responsive(b) })
}

// askStores asks the default handler's store and others. Stores that fail are left out. The call
// fails if all fail, or if the default handler's store answers with an error.
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

// away reports whether err means that a store does not answer; false if the client ended the call.
func away(ctx context.Context, err error) bool {
	if ctx.Err() != nil {
		return false
	}
	code := status.Code(err)
	return code == codes.Unavailable || code == codes.DeadlineExceeded || errdefs.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded)
}
