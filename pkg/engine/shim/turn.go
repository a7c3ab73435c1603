package shim

import "context"

// turn is a mutex whose wait a context can end: whoever has it may be waiting for
// a process that does not answer.
type turn chan struct{}

func (t turn) await(ctx context.Context) error {
	select {
	case t <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t turn) release() { <-t }
