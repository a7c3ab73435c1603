package registry

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ErrStalled is the cause of a pull's end when its registry went silent.
var ErrStalled = errors.New("no progress")

// Progress watches the requests of one pull. Time counts against the pull only
// while a request is open: unpacking, or waiting for another pull that downloads
// the same layer, is no stall.
type Progress struct {
	// Total, if there is one, counts the bytes of all pulls.
	Total *atomic.Int64

	open  atomic.Int64
	bytes atomic.Int64
}

// came counts bytes.
func (p *Progress) came(n int) {
	p.bytes.Add(int64(n))
	if p.Total != nil {
		p.Total.Add(int64(n))
	}
}

// Bytes is how many have come.
func (p *Progress) Bytes() int64 { return p.bytes.Load() }

// Watch cancels with ErrStalled once a request has been open for timeout without
// a byte. It returns when ctx ends. A timeout below 0 never fires.
func (p *Progress) Watch(ctx context.Context, timeout time.Duration, cancel context.CancelCauseFunc) {
	if timeout < 0 {
		return
	}
	tick := time.NewTicker(max(min(timeout/4, 10*time.Second), time.Millisecond))
	defer tick.Stop()
	since, seen, wasOpen := time.Now(), int64(0), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		open, bytes := p.open.Load() > 0, p.bytes.Load()
		if !open || !wasOpen || bytes != seen {
			since, seen, wasOpen = time.Now(), bytes, open
			continue
		}
		if time.Since(since) >= timeout {
			cancel(ErrStalled)
			return
		}
	}
}
