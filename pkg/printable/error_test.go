package printable_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/printable"
)

// A client sees the class of an error as the code of the response: "code =
// FailedPrecondition desc = …: failed precondition" would repeat it.
func TestErrorHasNoClass(t *testing.T) {
	for _, class := range []error{
		errdefs.ErrUnknown, errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrPermissionDenied,
		errdefs.ErrResourceExhausted, errdefs.ErrFailedPrecondition, errdefs.ErrConflict, errdefs.ErrNotModified, errdefs.ErrAborted,
		errdefs.ErrOutOfRange, errdefs.ErrNotImplemented, errdefs.ErrInternal, errdefs.ErrUnavailable, errdefs.ErrDataLoss, errdefs.ErrUnauthenticated,
	} {
		end := fmt.Errorf("install it: %w", class)
		for want, err := range map[string]error{
			class.Error():                  class,
			"install it":                   end,
			"handler: install it":          fmt.Errorf("handler: %w", end),
			"read: install it":             fmt.Errorf("%w: read: %w", class, end),
			"read: install it then":        fmt.Errorf("read: %w: %w", class, errors.New("install it then")),
			"clean up: install it; and so": fmt.Errorf("clean up: %w; and so", end),
			"one\ninstall it":              errors.Join(errors.New("one"), end),
			"two: file does not exist":     fmt.Errorf("two: %w: %w", fs.ErrNotExist, class),
			"in words":                     fmt.Errorf("%w: %w", errors.New("in words"), class),
		} {
			test.Equal(t, fmt.Sprintf("%q is shown as", err), printable.Error(err), want)
		}
	}
	// An error of a shim has its class a second time, after the text.
	beside := fmt.Errorf("open /x: %w", fmt.Errorf("it is a file: %w: %w", errors.New("not a directory"), errdefs.ErrFailedPrecondition))
	test.Equal(t, "an error of a shim is shown as", printable.Error(errgrpc.ToNative(errgrpc.ToGRPC(beside))), "open /x: it is a file: not a directory")
}

func TestErrorKeepsWhatIsNoClass(t *testing.T) {
	for want, err := range map[string]error{
		"a: context deadline exceeded": fmt.Errorf("a: %w", context.DeadlineExceeded),
		"a: not found":                 errors.New("a: not found"),
		"pull a: a: not found":         fmt.Errorf("pull a: %s: %w", "a: not found", errdefs.ErrNotFound), // from the text of the registry
		"the disk is full":             errdefs.ErrUnavailable.WithMessage("the disk is full"),
		"b: no room":                   fmt.Errorf("b: %w", status.Error(codes.Aborted, "no room")),
	} {
		test.Equal(t, fmt.Sprintf("%q is shown as", err), printable.Error(err), want)
	}
}

func FuzzError(f *testing.F) {
	f.Add("a: not found: %w", "not found")
	f.Fuzz(func(t *testing.T, before, after string) {
		err := fmt.Errorf("%s%w%s", before, errdefs.ErrNotFound, after)
		if got := printable.Error(err); len(got) > len(err.Error()) || !strings.Contains(err.Error(), got) && len(got) == len(err.Error()) {
			t.Errorf("%q becomes %q", err, got)
		}
	})
}
