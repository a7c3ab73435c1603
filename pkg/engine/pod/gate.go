package pod

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// gate lets in those who make something in a sandbox, until it is shut for good.
// What they make becomes visible inside the gate or not at all, so that whoever
// has shut it sees everything that there will ever be.
type gate struct {
	Ctx  context.Context // ends when the gate is shut, with mu held
	end  context.CancelFunc
	left chan struct{} // closed when it is shut and everybody has left

	mu     sync.Mutex
	inside int // guarded by mu
}

var errShut = errors.New("the sandbox is being stopped")

func newGate() *gate {
	g := &gate{left: make(chan struct{})}
	g.Ctx, g.end = context.WithCancel(context.Background())
	return g
}

// Enter fails with errShut when the gate is shut. The returned context ends when
// it will be. Everybody who entered must leave, once.
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

// Show calls f, which makes something visible, unless the gate is shut.
func (g *gate) Show(f func()) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.Ctx.Err() != nil {
		return errShut
	}
	f()
	return nil
}

// Shut lets nobody in any more, ends the contexts of those inside, and waits
// until they have left. It may be repeated.
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

// UndoTimeout bounds a whole roll-back.
const UndoTimeout = 2 * time.Minute

// Undo is the stack of steps that are done and must be undone if the whole
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
