package pod

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestUndoRunsLastFirstUpToTheFirstFailure(t *testing.T) {
	var order []string
	broken := errors.New("broken")
	cause := broken
	u := &Undo{}
	u.Add("a", func(context.Context) error { order = append(order, "a"); return nil })
	u.Add("b", func(context.Context) error { order = append(order, "b"); return cause })
	u.Add("c", func(ctx context.Context) error { order = append(order, "c"); return ctx.Err() })
	if err := u.Run(); !errors.Is(err, broken) || !strings.Contains(err.Error(), "undo b") {
		t.Errorf("run: %v", err)
	}
	cause = nil
	test.Checkf(t, u.Run(), "the second run")
	if got := strings.Join(order, ""); got != "cbba" {
		t.Errorf("order %q, want cb and ba", got)
	}
}
