package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// undoTimeout bounds a whole roll-back.
const undoTimeout = 2 * time.Minute

// undo is the stack of what has been done and must be taken back if the whole
// does not come about. Steps may be added from several goroutines.
type undo struct {
	mu    sync.Mutex
	steps []step
}

type step struct {
	name string
	back func(context.Context) error
}

// add declares how to take back what was just done (or is about to be: a step
// that undoes a half-done thing must cope with nothing having been done).
func (u *undo) add(name string, back func(context.Context) error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.steps = append(u.steps, step{name, back})
}

// run takes everything back, last first, with a context of its own: the
// caller's may be what failed. Every step runs; what fails is reported.
func (u *undo) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	u.mu.Lock()
	defer u.mu.Unlock()
	var errs []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		if err := u.steps[i].back(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo %s: %w", u.steps[i].name, err))
		}
	}
	u.steps = nil
	return errors.Join(errs...)
}
