package pod

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// UndoTimeout bounds a whole roll-back.
const UndoTimeout = 2 * time.Minute

// Undo is the stack of what has been done and must be taken back if the whole
// does not come about. Steps may be added from several goroutines.
type Undo struct {
	mu    sync.Mutex
	Steps []undoStep
}

type undoStep struct {
	name string
	Back func(context.Context) error
}

// Add declares how to take back what was just done (or is about to be: a step
// that undoes a half-done thing must cope with nothing having been done).
func (u *Undo) Add(name string, back func(context.Context) error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.Steps = append(u.Steps, undoStep{name, back})
}

// Run takes everything back, last first, with a context of its own: the
// caller's may be what failed. It ends at the first step that fails, because what
// was done before is needed to try that again: what is left is for whoever is
// shown it.
func (u *Undo) Run() error {
	ctx, cancel := context.WithTimeout(context.Background(), UndoTimeout)
	defer cancel()
	u.mu.Lock()
	defer u.mu.Unlock()
	for ; len(u.Steps) > 0; u.Steps = u.Steps[:len(u.Steps)-1] {
		last := u.Steps[len(u.Steps)-1]
		if err := last.Back(ctx); err != nil {
			return fmt.Errorf("undo %s: %w", last.name, err)
		}
	}
	return nil
}
