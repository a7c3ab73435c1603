package task_test

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/pkg/engine/task"
)

// The class of an error that came from a shim is at the end of its text, once.
func TestFromShimSaysTheClassOnce(t *testing.T) {
	beside := fmt.Errorf("it is no directory: %w: %w", syscall.ENOTDIR, errdefs.ErrFailedPrecondition)
	for _, c := range []struct {
		err  error
		want string
	}{
		{&os.PathError{Op: "open", Path: "/x", Err: beside}, "open /x: it is no directory: not a directory: failed precondition"},
		{fmt.Errorf("a: %w", errdefs.ErrFailedPrecondition), "a: failed precondition"},
		{fmt.Errorf("%w: a", errdefs.ErrFailedPrecondition), "failed precondition: a"},
	} {
		got := task.FromShim(errgrpc.ToGRPC(c.err))
		if !errors.Is(got, errdefs.ErrFailedPrecondition) || got.Error() != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
		if again := status.Code(errgrpc.ToGRPC(got)); again != codes.FailedPrecondition {
			t.Errorf("%q has code %v", got, again)
		}
	}
}
