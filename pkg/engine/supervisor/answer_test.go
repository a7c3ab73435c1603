package supervisor

import (
	"context"
	"testing"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestPanicCostsTheCall(t *testing.T) {
	info := &ttrpc.UnaryServerInfo{FullMethod: "/task/Start"}
	_, err := answer(t.Context(), nil, info, func(context.Context, func(any) error) (any, error) { panic("mistake") })
	if status.Code(err) != codes.Internal {
		t.Errorf("a call that panics returns %v, want an internal error", err)
	}
}
