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

// trials remember the pods that tried next binaries.
type trials struct {
	mu   sync.Mutex
	pods map[string]*tries // by the handler's name
}

// tries are those of one binary.
type tries struct {
	path string
	// begun and failed are pods, with the time at which they first were.
	begun, failed map[string]time.Time
	// over says that an end was asked for.
	over bool
}

func (t *trials) of(name, path string, now time.Time) *tries {
	one := t.pods[name]
	if one == nil || one.path != path {
		one = &tries{path: path, begun: map[string]time.Time{}, failed: map[string]time.Time{}}
		if t.pods == nil {
			t.pods = map[string]*tries{}
		}
		t.pods[name] = one
	}
	for _, pods := range []map[string]time.Time{one.begun, one.failed} {
		for pod, at := range pods {
			if now.Sub(at) > trialWindow {
				delete(pods, pod)
			}
		}
	}
	return one
}

func first(pods map[string]time.Time, pod string, now time.Time) {
	if _, known := pods[pod]; !known {
		pods[pod] = now
	}
}

// Tried implements router.Judge.
func (m *Manager) Tried(name, path, pod string) {
	m.trials.mu.Lock()
	defer m.trials.mu.Unlock()
	now := time.Now()
	first(m.trials.of(name, path, now).begun, pod, now)
}

// Failed implements router.Judge. It ends a trial of which too many pods fail.
func (m *Manager) Failed(name, path, pod string, err error) {
	t := m.snapshot()
	d := definitions(t.config)[name]
	if d == nil || d.Next == nil || d.Next.Path != path || t.ruling(d) != nil {
		return // of a trial that is over
	}
	m.trials.mu.Lock()
	now := time.Now()
	one := m.trials.of(name, path, now)
	first(one.begun, pod, now)
	first(one.failed, pod, now)
	begun, failed := len(one.begun), len(one.failed)
	end := !one.over && failed >= d.Next.AbortAfter && 100*failed >= d.Next.Threshold*begun
	one.over = one.over || end
	m.trials.mu.Unlock()
	if !end || !m.begin() {
		return
	}
	reason := strings.ToValidUTF8(clip(fmt.Sprintf("%d of %d pods that tried it within %v failed to start, the last with: %v", failed, begun, trialWindow, err)), "")
	go func() {
		defer m.work.Done()
		if err := m.rule(m.life, name, d.Next, TrialAborted, reason); err != nil {
			log.G(m.life).WithError(err).WithField("handler", name).Error("A trial that should end goes on")
			m.trials.mu.Lock()
			one.over = false
			m.trials.mu.Unlock()
		}
	}()
}

func clip(s string) string {
	if len(s) <= maxReason {
		return s
	}
	return s[:maxReason] + "…"
}

// Promote makes the next binary of a handler the one of all its new pods, until
// next is changed in or removed from the configuration, which should by then name
// it as runtime_path. It survives restarts. Pods that exist keep their binary.
func (m *Manager) Promote(ctx context.Context, name string) error {
	return m.decide(ctx, name, TrialPromoted, "an operator promoted it")
}

// Abort ends the trial of a handler's next binary: no new pods get it until next
// is changed in the configuration. It takes back Promote as well, and survives
// restarts.
func (m *Manager) Abort(ctx context.Context, name, reason string) error {
	if reason == "" {
		reason = "an operator aborted it"
	}
	if len(reason) > maxReason {
		return fmt.Errorf("the reason has %d bytes; it may have %d: %w", len(reason), maxReason, errdefs.ErrInvalidArgument)
	}
	return m.decide(ctx, name, TrialAborted, strings.Join(strings.Fields(reason), " "))
}

func (m *Manager) decide(ctx context.Context, name string, state TrialState, reason string) error {
	if err := m.known(name); err != nil {
		return err
	}
	d := definitions(m.snapshot().config)[name]
	if d == nil || d.Next == nil {
		return fmt.Errorf("handler %q tries no binary: configure next = { runtime_path = …, percent = … } under [runtimes.%s]: %w", name, name, errdefs.ErrFailedPrecondition)
	}
	return m.rule(ctx, name, d.Next, state, reason)
}

// rule keeps a ruling on disk, and then puts it in force.
func (m *Manager) rule(ctx context.Context, name string, on *handler.Next, state TrialState, reason string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.truth
	changed, err := m.apply(func(t *truth) error {
		d := definitions(t.config)[name]
		if d == nil || d.Next == nil || *d.Next != *on {
			return fmt.Errorf("the configuration of handler %q was changed meanwhile; look again: %w", name, errdefs.ErrFailedPrecondition)
		}
		if v, known := t.verdictOf(d.WithNext()); state == TrialPromoted && (!known || v.failure != "") {
			return fmt.Errorf("the next binary of handler %q cannot be promoted, it is not ready: %s: %w", name, v.failure, errdefs.ErrFailedPrecondition)
		}
		for other := range t.rulings {
			if d := definitions(t.config)[other]; d == nil || t.ruling(d) == nil {
				delete(t.rulings, other)
			}
		}
		t.rulings[name] = &Ruling{State: state, Reason: reason, Since: time.Now(), On: *on}
		return replace(m.rulingsPath(), storedRulings{t.rulings})
	})
	if err != nil {
		if again := replace(m.rulingsPath(), storedRulings{before.rulings}); again != nil {
			log.G(ctx).WithError(again).WithField("handler", name).Error("A ruling that is not in force was left on disk")
		}
		return err
	}
	m.tell(changed, nil)
	log.G(ctx).WithFields(log.Fields{"handler": name, "runtime": on.Path, "state": state, "reason": reason}).Warn("The trial of a binary is over")
	return nil
}
