package podcheckpoint

import (
	"io/fs"
	"testing"

	"github.com/containerd/errdefs"
)

func TestOutcome(t *testing.T) {
	for err, want := range map[error]string{nil: ok, errdefs.ErrInvalidArgument: refused, errdefs.ErrFailedPrecondition: refused, errdefs.ErrNotImplemented: refused, errdefs.ErrResourceExhausted: failed, errdefs.ErrUnavailable: failed, fs.ErrInvalid: failed} {
		if got := outcome(err); got != want {
			t.Errorf("%v is %s", err, got)
		}
	}
}
