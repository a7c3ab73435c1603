// Package keyedlock provides locks with a cancellable wait: a single lock, or one for each key.
package keyedlock

import (
	"context"
	"sync"
)

// Mutex is a lock with one holder at a time.
type Mutex chan struct{}

// NewMutex returns a free lock.
func NewMutex() Mutex { return make(Mutex, 1) }

// Lock takes the lock, or returns ctx's error.
func (m Mutex) Lock(ctx context.Context) error {
	select {
	case m <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TryLock takes the lock if it is free.
func (m Mutex) TryLock() bool {
	select {
	case m <- struct{}{}:
		return true
	default:
		return false
	}
}

// Unlock releases the lock.
func (m Mutex) Unlock() { <-m }

// Locks are the locks of all keys. A key uses no memory while it is neither held nor waited for.
type Locks struct {
	holders int

	mu   sync.Mutex
	keys map[string]*key
}

type key struct {
	slots Mutex
	// users counts callers that hold a slot or wait for one; guarded by Locks.mu.
	users int
}

// New returns locks, each with at most that number of holders at a time.
func New(holders int) *Locks { return &Locks{holders: holders, keys: map[string]*key{}} }

// Lock takes the lock of a key, or returns ctx's error.
func (l *Locks) Lock(ctx context.Context, name string) error {
	l.mu.Lock()
	k := l.keys[name]
	if k == nil {
		k = &key{slots: make(Mutex, l.holders)}
		l.keys[name] = k
	}
	k.users++
	l.mu.Unlock()
	err := k.slots.Lock(ctx)
	if err != nil {
		l.leave(name, k)
	}
	return err
}

// Unlock releases the lock of a key.
func (l *Locks) Unlock(name string) {
	l.mu.Lock()
	k := l.keys[name]
	l.mu.Unlock()
	k.slots.Unlock()
	l.leave(name, k)
}

func (l *Locks) leave(name string, k *key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.keys, name)
	}
}

// Used is the number of keys that are held or waited for.
func (l *Locks) Used() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.keys)
}
