package rollout

import (
	"maps"
	"sync"
	"time"
)

const (
	// window is how long a pod counts in a rollout.
	window = 10 * time.Minute
	// abortAfter is the number of failed candidate pods before an abort.
	abortAfter = 3
	// threshold is the difference of the shares of failed pods before an abort, in percentage
	// points.
	threshold = 20
)

// tallies count the pods of handlers with a rollout.
type tallies struct {
	mu      sync.Mutex
	running map[string]*tally // by the handler's name
}

type tally struct {
	key key
	// candidate are pods on the candidate's binary, stable the handler's other pods.
	candidate, stable sample
	// over is set once an abort was requested.
	over bool
}

func newTally(k key) *tally { return &tally{key: k, candidate: newSample(), stable: newSample()} }

// sample maps pods to the time of their first start and first failure. A retried pod counts once.
type sample struct{ begun, failed map[string]time.Time }

func newSample() sample { return sample{map[string]time.Time{}, map[string]time.Time{}} }

// of returns the tally of a rollout; mu is held. It drops the counts of another rollout and pods
// older than window.
func (t *tallies) of(name string, k key, now time.Time) *tally {
	one := t.running[name]
	switch {
	case one == nil, one.key.digest != k.digest, !mayBe(one.key.sha256, k.sha256):
		one = newTally(k)
		t.running[name] = one
	case one.key.sha256 == "":
		one.key = k
	}
	for _, pods := range []map[string]time.Time{one.candidate.begun, one.candidate.failed, one.stable.begun, one.stable.failed} {
		maps.DeleteFunc(pods, func(_ string, at time.Time) bool { return now.Sub(at) > window })
	}
	return one
}

func (t *tallies) keep(view func(name string) View) {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.running, func(name string, _ *tally) bool { return !view(name).open() })
}

func (s sample) add(pod string, failed bool, now time.Time) {
	first(s.begun, pod, now)
	if failed {
		first(s.failed, pod, now)
	}
}

func first(pods map[string]time.Time, pod string, now time.Time) {
	if _, known := pods[pod]; !known {
		pods[pod] = now
	}
}

// exceeds reports whether to abort a rollout: at least abortAfter candidate pods failed, and their
// share of failures is at least threshold above that of the stable pods, counted as 0 for fewer
// than abortAfter pods. Pure.
func (t *tally) exceeds() bool {
	begun, failed := len(t.candidate.begun), len(t.candidate.failed)
	usual, bad := len(t.stable.begun), len(t.stable.failed)
	if usual < abortAfter {
		usual, bad = 1, 0
	}
	return failed >= abortAfter && 100*(failed*usual-bad*begun) >= threshold*begun*usual
}
