package router

import (
	"sync"
	"sync/atomic"
)

// lookAgain asks all backends what they have, for calls about ids that nobody is
// known to have. Calls that come while it is at work share the next look: who
// asks for what is gone, many times at once and without end, must not keep the
// backends busy.
type lookAgain struct {
	// asked numbers the calls.
	asked atomic.Uint64

	mu sync.Mutex
	// answered is the last call that was there before the last look began.
	answered uint64
	// seen are the editions of backends' inventories that the owners have.
	seen map[string]edition
}

// edition is one of one backend: another with the same id begins anew.
type edition struct {
	of     Backend
	number uint64
}

// ask returns when the owners have what all backends had when it was called.
func (l *lookAgain) ask(o *owners) {
	mine := l.asked.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.answered >= mine {
		return
	}
	upTo := l.asked.Load()
	seen := map[string]edition{}
	for _, b := range o.all() {
		e, ok := b.(Editioned)
		if !ok {
			o.refresh(b)
			continue
		}
		now := edition{b, e.Edition()}
		if l.seen[b.ID()] != now {
			o.refresh(b)
		}
		seen[b.ID()] = now
	}
	l.seen, l.answered = seen, upTo
}
