package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// errTaken keeps a lease from being given back by one who does not have it any more.
var errTaken = errors.New("another controller took the lease")

// term is for how long the holder of a lease may work. The elector itself ends work only when
// it has tried to give the lease back, which may take longer than others wait for it.
type term struct {
	mu    sync.Mutex
	until time.Time
	timer *time.Timer // nil before work begins
}

// begin has work stopped when the term is over.
func (t *term) begin(stop func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer = time.AfterFunc(time.Until(t.until), stop)
}

// renewed says that the lease was asked for at a time, and given.
func (t *term) renewed(asked time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = asked.Add(workDeadline)
	if t.timer != nil {
		t.timer.Reset(time.Until(t.until))
	}
}

// lock is a lease that tells a term of its renewals. One goroutine uses it.
type lock struct {
	resourcelock.Interface
	term   *term
	holder string // as last read
}

func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.holder = record.HolderIdentity
	}
	return record, raw, err
}

func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	asked := time.Now()
	err := l.Interface.Create(ctx, record)
	if err == nil {
		l.term.renewed(asked)
	}
	return err
}

func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && l.holder != l.Identity() {
		return errTaken // the elector has read it just now, and looks only at what it read before
	}
	asked := time.Now()
	err := l.Interface.Update(ctx, record)
	if err == nil && record.HolderIdentity != "" {
		l.term.renewed(asked)
	}
	return err
}
