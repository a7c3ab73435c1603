package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// gate admits calls that create something in a sandbox, until it is shut for good. Objects become
// visible by Show, which fails after Shut.
type gate struct {
	Ctx  context.Context // ends when the gate is shut, with mu held
	end  context.CancelFunc
	left chan struct{} // closed when it is shut and all calls have left

	mu     sync.Mutex
	inside int // guarded by mu
}

var errShut = errors.New("the sandbox is being stopped")

func newGate() *gate {
	g := &gate{left: make(chan struct{})}
	g.Ctx, g.end = context.WithCancel(context.Background())
	return g
}

// Enter fails with errShut when the gate is shut. Shut cancels the returned context. leave must be
// called once.
func (g *gate) Enter(ctx context.Context) (inside context.Context, leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Ctx.Err() != nil {
		return nil, nil, errShut
	}
	g.inside++
	inside, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(g.Ctx, cancel)
	return inside, func() {
		stop()
		cancel()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.inside--
		if g.Ctx.Err() != nil && g.inside == 0 {
			close(g.left)
		}
	}, nil
}

// Show calls f, which makes an object visible, unless the gate is shut.
func (g *gate) Show(f func()) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Ctx.Err() != nil {
		return errShut
	}
	f()
	return nil
}

// Shut rejects new calls, cancels the contexts of calls inside, and waits until they have left. It
// is idempotent.
func (g *gate) Shut(ctx context.Context) error {
	g.mu.Lock()
	if g.Ctx.Err() == nil {
		g.end()
		if g.inside == 0 {
			close(g.left)
		}
	}
	g.mu.Unlock()
	select {
	case <-g.left:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// UndoTimeout bounds a complete roll-back.
const UndoTimeout = 2 * time.Minute

// Undo is a stack of steps that are rolled back if a call fails. Steps may be added concurrently.
type Undo struct {
	mu    sync.Mutex
	Steps []undoStep
}

type undoStep struct {
	name string
	Back func(context.Context) error
}

// Add registers the roll-back of a step. A step that is registered before it runs must also roll
// back if nothing was done.
func (u *Undo) Add(name string, back func(context.Context) error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.Steps = append(u.Steps, undoStep{name, back})
}

// Run rolls back, last step first, with its own context, because the caller's may be cancelled. It
// stops at the first failure: a retry of the failed step needs the results of earlier steps. The
// partially created object is then listed for removal.
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
