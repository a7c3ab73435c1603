package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/log"
)

// teardown is a stack of named steps that undo what was set up. One goroutine
// at a time may use it.
type teardown struct {
	steps []step
}

type step struct {
	name string
	undo func(context.Context) error
}

// add puts a step on the stack.
func (t *teardown) add(name string, undo func(context.Context) error) {
	t.steps = append(t.steps, step{name, undo})
}

// run takes the steps, last one first. A step that fails is logged by its name,
// and the others still run.
func (t *teardown) run(ctx context.Context) error {
	var errs []error
	for _, s := range slices.Backward(t.steps) {
		if err := s.undo(ctx); err != nil {
			log.G(ctx).WithError(err).WithField("step", s.name).Warn("Shutdown step failed")
			errs = append(errs, fmt.Errorf("stop %s: %w", s.name, err))
		}
	}
	t.steps = nil
	return errors.Join(errs...)
}
