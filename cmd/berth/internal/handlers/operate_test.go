package handlers

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/internal/test"
)

// Either the command or the daemon notices the end of the time first.
func TestGaveUp(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want bool
	}{
		"here":                 {over, status.Error(codes.Canceled, "context canceled"), true},
		"by the daemon":        {t.Context(), status.Error(codes.DeadlineExceeded, "context deadline exceeded"), true},
		"a daemon that leaves": {t.Context(), status.Error(codes.Unavailable, "closing"), false},
		"anything else":        {t.Context(), errors.New("no"), false},
	} {
		test.Equal(t, name, gaveUp(c.ctx, c.err), c.want)
	}
}
