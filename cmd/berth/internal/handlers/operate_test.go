package handlers

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/internal/test"
)

// The timeout may end the command's context or the daemon's call first.
func TestGaveUp(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		err  error
		want bool
	}{
		"the command's context": {over, status.Error(codes.Canceled, "context canceled"), true},
		"the daemon's call":     {t.Context(), status.Error(codes.DeadlineExceeded, "context deadline exceeded"), true},
		"a daemon that stops":   {t.Context(), status.Error(codes.Unavailable, "closing"), false},
		"anything else":         {t.Context(), errors.New("no"), false},
	} {
		test.Equal(t, name, gaveUp(c.ctx, c.err), c.want)
	}
}
