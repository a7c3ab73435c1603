package engine

import (
	"context"
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
// caller's may be what failed. It ends at the first step that fails, because what
// was done before is needed to try that again: what is left is for whoever is
// shown it.
func (u *undo) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	u.mu.Lock()
	defer u.mu.Unlock()
	for ; len(u.steps) > 0; u.steps = u.steps[:len(u.steps)-1] {
		last := u.steps[len(u.steps)-1]
		if err := last.back(ctx); err != nil {
			return fmt.Errorf("undo %s: %w", last.name, err)
		}
	}
	return nil
}
