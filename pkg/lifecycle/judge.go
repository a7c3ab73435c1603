package lifecycle

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
)

// trialWindow is how long a pod counts in the trial of a next binary.
const trialWindow = 10 * time.Minute

// trials remember the pods of handlers that have a binary on trial.
type trials struct {
	mu      sync.Mutex
	running map[string]*tries // by the handler's name
}

// tries are those of one trial.
type tries struct {
	key trialKey
	// next are pods on the binary on trial, stable the others of the handler.
	next, stable sample
	// over says that an end was asked for.
	over bool
}

// sample is pods, by what names them, with the time at which they first were begun
// and first failed. A pod that is tried again is the same pod.
type sample struct{ begun, failed map[string]time.Time }

func newSample() sample { return sample{map[string]time.Time{}, map[string]time.Time{}} }

// of is what is known of a trial; mu is held. What was of another is forgotten, as
// are pods of long ago.
func (t *trials) of(name string, key trialKey, now time.Time) *tries {
	one := t.running[name]
	switch {
	case one == nil, one.key.digest != key.digest, !mayBe(one.key.sha256, key.sha256):
		one = &tries{next: newSample(), stable: newSample()}
		if t.running == nil {
			t.running = map[string]*tries{}
		}
		t.running[name] = one
		one.key = key
	case one.key.sha256 == "":
		one.key = key
	}
	for _, pods := range []map[string]time.Time{one.next.begun, one.next.failed, one.stable.begun, one.stable.failed} {
		for pod, at := range pods {
			if now.Sub(at) > trialWindow {
				delete(pods, pod)
			}
		}
	}
	return one
}

// keep forgets the trials that handlers do not have.
func (t *trials) keep(of *truth) {
	configured := definitions(of.config)
	t.mu.Lock()
	defer t.mu.Unlock()
	for name := range t.running {
		if d := configured[name]; d == nil || d.Next == nil {
			delete(t.running, name)
		}
	}
}

func (t *trials) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, name)
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

// fails says whether a trial must end: enough pods on the binary failed, and their
// share of those that tried it is, in percent, so much higher than that of the
// handler's own binary. The latter is 0 unless enough pods tell it. Pure.
func (o *tries) fails(n *handler.Next) bool {
	begun, failed := len(o.next.begun), len(o.next.failed)
	usual, bad := len(o.stable.begun), len(o.stable.failed)
	if usual < n.AbortAfter || usual == 0 {
		usual, bad = 1, 0
	}
	return failed >= n.AbortAfter && 100*(failed*usual-bad*begun) >= n.Threshold*begun*usual
}

// Began implements router.Judge.
func (m *Manager) Began(name string, a handler.Attempt) { m.count(name, a, false) }

// Failed implements router.Judge. It ends a trial of which too many pods fail.
func (m *Manager) Failed(name string, a handler.Attempt, err error) {
	one, d := m.count(name, a, true)
	if one == nil || a.Definition.Variant != handler.VariantNext {
		return
	}
	m.trials.mu.Lock()
	key, begun, failed := one.key, len(one.next.begun), len(one.next.failed)
	end := !one.over && one.fails(d.Next)
	one.over = one.over || end
	m.trials.mu.Unlock()
	if !end || !m.begin() {
		return
	}
	reason := strings.ToValidUTF8(clip(fmt.Sprintf("%d of %d pods on the candidate failed to start within %v; last error: %v", failed, begun, trialWindow, err)), "")
	go func() {
		defer m.work.Done()
		if err := m.rule(m.life, name, d.Next, &key, TrialAborted, reason); err != nil {
			log.G(m.life).WithError(err).WithField("handler", name).Error("Failed to abort rollout over its failure threshold")
			m.trials.mu.Lock()
			one.over = false
			m.trials.mu.Unlock()
		}
	}()
}

// count adds a pod to the running trial of its handler. It returns nil if there is
// none, or the pod is of another.
func (m *Manager) count(name string, a handler.Attempt, failed bool) (*tries, *handler.Definition) {
	t := m.snapshot()
	d := definitions(t.config)[name]
	if a.Definition == nil || d == nil || d.Next == nil || t.ruling(d) != nil {
		return nil, nil
	}
	key := t.trialOf(d)
	onTrial := a.Definition.Variant == handler.VariantNext
	if onTrial && (a.Definition.Digest() != key.digest || !mayBe(a.SHA256, key.sha256)) {
		return nil, nil
	}
	m.trials.mu.Lock()
	defer m.trials.mu.Unlock()
	now := time.Now()
	one := m.trials.of(name, key, now)
	if onTrial {
		one.next.add(a.Pod, failed, now)
	} else {
		one.stable.add(a.Pod, failed, now)
	}
	return one, d
}

func clip(s string) string {
	if len(s) <= maxReason {
		return s
	}
	return s[:maxReason] + "…"
}

// Promote makes the next binary of a handler the one of all its new pods, until
// next is changed in or removed from the configuration, or becomes another program;
// the configuration should by then name
// it as runtime_path. It survives restarts. Pods that exist keep their binary.
func (m *Manager) Promote(ctx context.Context, name string) error {
	return m.decide(ctx, name, TrialPromoted, "promoted by an operator")
}

// Abort ends the trial of a handler's next binary: no new pods get it until next
// is changed in the configuration, or becomes another program. It takes back Promote as well, and survives
// restarts.
func (m *Manager) Abort(ctx context.Context, name, reason string) error {
	if reason == "" {
		reason = "aborted by an operator"
	}
	if len(reason) > maxReason {
		return fmt.Errorf("the reason has %d bytes; the limit is %d: %w", len(reason), maxReason, errdefs.ErrInvalidArgument)
	}
	return m.decide(ctx, name, TrialAborted, strings.Join(strings.Fields(reason), " "))
}

func (m *Manager) decide(ctx context.Context, name string, state TrialState, reason string) error {
	if err := m.known(name); err != nil {
		return err
	}
	d := definitions(m.snapshot().config)[name]
	if d != nil && d.Type == handler.CRI {
		return fmt.Errorf("handler %q belongs to another daemon, so berth cannot roll out its binary; configure a second handler for the new one: %w", name, errdefs.ErrFailedPrecondition)
	}
	if d == nil || d.Next == nil {
		return fmt.Errorf("handler %q has no rollout; configure next = { runtime_path = …, percent = … } under [runtimes.%s]: %w", name, name, errdefs.ErrFailedPrecondition)
	}
	return m.rule(ctx, name, d.Next, nil, state, reason)
}

// rule keeps a ruling on disk, and then puts it in force. judged is the trial that
// it follows from; nil is the one of the moment.
func (m *Manager) rule(ctx context.Context, name string, on *handler.Next, judged *trialKey, state TrialState, reason string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.truth
	changed, err := m.apply(func(t *truth) error {
		d := definitions(t.config)[name]
		if d == nil || d.Next == nil || *d.Next != *on || judged != nil && !mayBe(judged.sha256, t.trialOf(d).sha256) {
			return fmt.Errorf("the configuration of handler %q changed during this call; check it and try again: %w", name, errdefs.ErrFailedPrecondition)
		}
		if v, known := t.verdictOf(d.WithNext()); state == TrialPromoted && (!known || v.failure != "") {
			return fmt.Errorf("cannot promote the candidate of handler %q: not ready: %s: %w", name, v.failure, errdefs.ErrFailedPrecondition)
		}
		t.settle()
		t.rulings[name] = &Ruling{State: state, Reason: reason, Since: time.Now(), On: *on, ByItself: judged != nil, SHA256: t.trialOf(d).sha256}
		return replace(m.rulingsPath(), storedRulings{t.rulings})
	})
	if err != nil {
		if again := replace(m.rulingsPath(), storedRulings{before.rulings}); again != nil {
			log.G(ctx).WithError(again).WithField("handler", name).Error("Failed to roll back stored rollout decision")
		}
		return err
	}
	m.trials.forget(name)
	m.tell(changed, nil)
	log.G(ctx).WithFields(log.Fields{"handler": name, "runtime": on.Path, "state": state, "reason": reason}).Warn("Rollout finished")
	return nil
}
