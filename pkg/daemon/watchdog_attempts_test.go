package daemon

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// The daemon counts as unresponsive only if all checks hang or fail.
func TestAnsweredAsksAgain(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	fail := func(context.Context) error { return errors.New("refused") }
	fine := func(context.Context) error { return nil }
	for name, c := range map[string]struct {
		checks   []func(context.Context) error // the last one is repeated
		patience time.Duration
		asked    int32
		want     string // in the error, or "" for success
	}{
		"at once":                {[]func(context.Context) error{fine}, time.Minute, 1, ""},
		"the first hangs":        {[]func(context.Context) error{hang, fine}, 4 * time.Second, 2, ""},
		"the first fails":        {[]func(context.Context) error{fail, fine}, 4 * time.Second, 2, ""},
		"three hang":             {[]func(context.Context) error{hang, hang, hang, fine}, 4 * time.Second, 4, ""},
		"all hang":               {[]func(context.Context) error{hang}, 100 * time.Millisecond, 0, "deadline"},
		"all fail":               {[]func(context.Context) error{fail}, 400 * time.Millisecond, 0, "refused"},
		"hangs, then is refused": {[]func(context.Context) error{hang, fail}, 4 * time.Second, 0, "deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			err := answered(t.Context(), func(ctx context.Context) error {
				n := int(asked.Add(1))
				return c.checks[min(n, len(c.checks))-1](ctx)
			}, c.patience)
			if got := asked.Load(); c.asked > 0 && got != c.asked {
				t.Errorf("%d checks, want %d", got, c.asked)
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// A slow check may still succeed within the patience, after later checks have begun.
func TestAnsweredWaitsForASlowOne(t *testing.T) {
	const patience = 4 * time.Second
	test.Check(t, answered(t.Context(), func(ctx context.Context) error {
		select {
		case <-time.After(patience / 3):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, patience))
}
