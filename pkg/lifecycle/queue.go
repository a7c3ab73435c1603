package lifecycle

import (
	"cmp"
	"sync"
)

// request is one wish for a reload.
type request struct {
	trigger Trigger
	// by is the user behind the request, or empty.
	by string
	// patient requests are tried once more, when files are quiet, before a
	// failure is reported: an editor may be in the middle of something.
	patient bool
	// silent requests are of no interest unless something changes.
	silent bool
	// done gets the outcome; nil is nobody. It is buffered.
	done chan Outcome
}

// queue collects requests, so that any number of them that come while one
// reload goes on are answered by the one after it.
type queue struct {
	wake chan struct{} // has room for one

	mu      sync.Mutex
	waiting []request
	closed  bool
}

// add says false if nobody will ever answer.
func (q *queue) add(r request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.waiting = append(q.waiting, r)
	select {
	case q.wake <- struct{}{}:
	default: // it is awake already
	}
	return true
}

// take returns all requests of the moment.
func (q *queue) take() []request {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.waiting
	q.waiting = nil
	return all
}

// close refuses further requests, and drops those that wait.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, r := range q.waiting {
		if r.done != nil {
			close(r.done)
		}
	}
	q.waiting = nil
}

// merged is what one reload for several requests is like. Pure.
func merged(all []request) request {
	m := request{trigger: all[0].trigger, patient: true, silent: true}
	for _, r := range all {
		if rank(r.trigger) > rank(m.trigger) {
			m.trigger = r.trigger
		}
		m.by = cmp.Or(m.by, r.by)
		m.patient = m.patient && r.patient
		m.silent = m.silent && r.silent
	}
	return m
}

// rank says whose reload it is when several asked: people go before files.
func rank(t Trigger) int {
	switch t {
	case TriggerAdmin:
		return 3
	case TriggerSignal:
		return 2
	case TriggerFiles:
		return 1
	}
	return 0
}
