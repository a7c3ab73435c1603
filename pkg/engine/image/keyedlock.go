package image

import (
	"context"
	"sync"
)

// keyedLock is a lock for each key, which a caller can stop waiting for. It
// keeps two pulls from fetching one blob, or unpacking one layer, at the same
// time (unpack.KeyedLocker).
type keyedLock struct {
	mu   sync.Mutex
	held map[string]*keyHolders
}

type keyHolders struct {
	// slot has room for one: who is in it holds the lock.
	slot chan struct{}
	// users holds or waits; guarded by keyedLock.mu.
	users int
}

// Lock takes the key's lock, or returns ctx's error.
func (k *keyedLock) Lock(ctx context.Context, key string) error {
	k.mu.Lock()
	if k.held == nil {
		k.held = map[string]*keyHolders{}
	}
	h := k.held[key]
	if h == nil {
		h = &keyHolders{slot: make(chan struct{}, 1)}
		k.held[key] = h
	}
	h.users++
	k.mu.Unlock()

	select {
	case h.slot <- struct{}{}:
		return nil
	case <-ctx.Done():
		k.leave(key, h)
		return ctx.Err()
	}
}

// Unlock gives the key's lock back.
func (k *keyedLock) Unlock(key string) {
	k.mu.Lock()
	h := k.held[key]
	k.mu.Unlock()
	<-h.slot
	k.leave(key, h)
}

func (k *keyedLock) leave(key string, h *keyHolders) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(k.held, key)
	}
}
