package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/internal/commandline"
)

// The class of an error is for programs: people read the cause and what to do.
func TestReport(t *testing.T) {
	for want, c := range map[string]struct {
		err  error
		code int
	}{
		"":                                {nil, 0},
		"berth: it broke\n":               {errors.New("it broke"), commandline.Failed},
		"berth: no manifest.json in /x\n": {fmt.Errorf("no manifest.json in /x: %w", errdefs.ErrNotFound), commandline.Failed},
		"berth: a: two mistakes\n":        {commandline.Wrong(fmt.Errorf("a: %w", fmt.Errorf("two mistakes: %w", errdefs.ErrInvalidArgument))), 2},
		"berth: restore: no such pod\n":   {fmt.Errorf("restore: %w", status.Error(codes.NotFound, "no such pod")), commandline.Failed},
	} {
		var stderr strings.Builder
		if code := report(c.err, &stderr); code != c.code || stderr.String() != want {
			t.Errorf("%d, %q; want %d, %q", code, &stderr, c.code, want)
		}
	}
}
