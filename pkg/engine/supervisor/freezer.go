package supervisor

import (
	"context"
	"errors"
)

// freezer pauses a container and lets it go on.
type freezer struct{ task *task }

func (f *freezer) freeze(ctx context.Context, verb string, paused bool) error {
	return f.task.whenRunning(ctx, func(ctx context.Context) error {
		if paused {
			// First: a call that fails, or whose supervisor dies, may have paused it.
			if err := f.setPaused(true); err != nil {
				return err
			}
		}
		_, err := f.task.call(ctx, &call{args: []string{verb, f.task.id}})
		if paused && err == nil || err != nil && !f.task.runs(ctx) {
			return err
		}
		return errors.Join(err, f.setPaused(false))
	})
}

// setPaused records whether the container may stand still.
func (f *freezer) setPaused(paused bool) error {
	t := f.task
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.journal.Paused
	t.journal.Paused = paused
	if err := t.save(); err != nil {
		t.journal.Paused = before
		return err
	}
	t.paused = paused && t.first.state == running
	return nil
}
