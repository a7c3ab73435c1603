package podcheckpoint

import (
	"fmt"
	"io/fs"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func TestOutcome(t *testing.T) {
	for err, want := range map[error]string{nil: ok, errdefs.ErrInvalidArgument: refused, errdefs.ErrFailedPrecondition: refused, errdefs.ErrNotImplemented: refused, errdefs.ErrResourceExhausted: failed, errdefs.ErrUnavailable: failed, fs.ErrInvalid: failed} {
		test.Equal(t, fmt.Sprint(err), outcome(err), want)
	}
}
