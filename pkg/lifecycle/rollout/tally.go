package rollout

import (
	"maps"
	"sync"
	"time"
)

const (
	// window is how long a pod counts in a rollout.
	window = 10 * time.Minute
	// abortAfter is how many pods of the candidate must have failed before an abort.
	abortAfter = 3
	// threshold is by how many percentage points their share must be higher.
	threshold = 20
)

// tallies remember the pods of handlers that have a rollout.
type tallies struct {
	mu      sync.Mutex
	running map[string]*tally // by the handler's name
}

type tally struct {
	key key
	// candidate are pods on that binary, stable the others of the handler.
	candidate, stable sample
	// over says that an end was asked for.
	over bool
}

func newTally(k key) *tally { return &tally{key: k, candidate: newSample(), stable: newSample()} }

// sample is pods, by what names them, with the time at which they first were begun
// and first failed. A pod that is tried again is the same pod.
type sample struct{ begun, failed map[string]time.Time }

func newSample() sample { return sample{map[string]time.Time{}, map[string]time.Time{}} }

// of is what is known of a rollout; mu is held. What was of another is forgotten, as
// are pods of long ago.
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

// keep forgets the rollouts that are over.
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

// exceeds says whether a rollout must be aborted: enough pods on the candidate failed,
// and their share of those that tried it is, in percent, so much higher than that of
// the handler's own binary. The latter is 0 unless enough pods tell it. Pure.
func (t *tally) exceeds() bool {
	begun, failed := len(t.candidate.begun), len(t.candidate.failed)
	usual, bad := len(t.stable.begun), len(t.stable.failed)
	if usual < abortAfter {
		usual, bad = 1, 0
	}
	return failed >= abortAfter && 100*(failed*usual-bad*begun) >= threshold*begun*usual
}
