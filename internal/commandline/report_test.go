package commandline

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Report omits the class of an error, which is for programs.
func TestReport(t *testing.T) {
	for want, c := range map[string]struct {
		err  error
		code int
	}{
		"":                                {nil, 0},
		"berth: it broke\n":               {errors.New("it broke"), Failed},
		"berth: no manifest.json in /x\n": {fmt.Errorf("no manifest.json in /x: %w", errdefs.ErrNotFound), Failed},
		"berth: a: two mistakes\n":        {Wrong(fmt.Errorf("a: %w", fmt.Errorf("two mistakes: %w", errdefs.ErrInvalidArgument))), 2},
		"berth: restore: no such pod\n":   {fmt.Errorf("restore: %w", status.Error(codes.NotFound, "no such pod")), Failed},
	} {
		var stderr strings.Builder
		if code := Report(&stderr, "berth:", c.err); code != c.code || stderr.String() != want {
			t.Errorf("%d, %q; want %d, %q", code, &stderr, c.code, want)
		}
	}
}
