package remote

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/log"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// checkTimeout bounds one check of the daemon.
	checkTimeout = 2 * time.Second
	// checkInterval is the time between checks of a daemon that answers.
	checkInterval = 5 * time.Second
	// backTimeout bounds the initialization of a daemon that is back.
	backTimeout = 30 * time.Second
	// retryInterval is the time between checks of a daemon that does not answer.
	retryInterval = 500 * time.Millisecond
)

// monitor tracks a daemon's health. It admits calls while the daemon answers, and ends those in
// progress when the daemon goes down.
type monitor struct {
	// name identifies the daemon in errors.
	name string
	// check checks the daemon once.
	check func(context.Context) observation
	// back initializes the daemon after an outage or a new connection. If it fails, the daemon is
	// down, and the error is the reason.
	back func(context.Context) error
	// changed is called after every change of phase or reason.
	changed func(Health)

	checkNow chan struct{}
	// asked is closed after the first check, before its result is reported to changed.
	asked chan struct{}
	once  sync.Once

	mu     sync.Mutex
	health Health
	// era ends when the daemon goes down; a new one begins when it answers again.
	era    context.Context
	endEra context.CancelCauseFunc
	// observed is closed at the next observation.
	observed chan struct{}
}

func newMonitor(name string, check func(context.Context) observation, back func(context.Context) error, changed func(Health)) *monitor {
	m := &monitor{name: name, check: check, back: back, changed: changed, checkNow: make(chan struct{}, 1), asked: make(chan struct{}), observed: make(chan struct{})}
	m.health = Health{Phase: Down, Reason: notAsked, Since: time.Now()}
	m.beginEra()
	m.endEra(m.refusal(m.health))
	return m
}

// beginEra needs mu, unless m is not shared yet.
func (m *monitor) beginEra() { m.era, m.endEra = context.WithCancelCause(context.Background()) }

func (m *monitor) current() Health {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.health
}

type unmonitoredKey struct{}

// unmonitored returns a context for calls that must also reach a daemon which still counts as down.
func unmonitored(ctx context.Context) context.Context {
	return context.WithValue(ctx, unmonitoredKey{}, true)
}

// admit returns the era of a call, or the reason why the daemon is down.
func (m *monitor) admit(ctx context.Context) (context.Context, error) {
	if ctx.Value(unmonitoredKey{}) != nil {
		return context.Background(), nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.health.Answers() {
		return m.era, nil
	}
	return nil, m.refusal(m.health)
}

// await waits until the daemon answers.
func (m *monitor) await(ctx context.Context) error {
	for {
		m.mu.Lock()
		answers, observed := m.health.Answers(), m.observed
		m.mu.Unlock()
		if answers {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-observed:
		}
	}
}

// refusal is the error of a call to a daemon that is down.
func (m *monitor) refusal(h Health) error {
	return status.Error(codes.Unavailable, fmt.Sprintf("%s has been down since %s: %s",
		m.name, h.Since.UTC().Format(time.RFC3339), h.Reason))
}

// slow is the error of a list of a lagging daemon.
func (m *monitor) slow() error {
	return status.Error(codes.DeadlineExceeded, fmt.Sprintf("%s: %s", m.name, m.current().Reason))
}

// suspect triggers a check, because a call failed or was late.
func (m *monitor) suspect() {
	select {
	case m.checkNow <- struct{}{}:
	default:
	}
}

// listFailed begins the Reason for a daemon that fails to list.
const listFailed = "it responds, but cannot list its pods: "

func (m *monitor) run(ctx context.Context) {
	for {
		wait := m.checkOnce(ctx)
		select {
		case <-ctx.Done():
			m.observe(ctx, observation{lost: "this berth no longer uses it"})
			return
		case <-time.After(wait):
		case <-m.checkNow:
		}
	}
}

// checkOnce checks the daemon and returns the time until the next check.
func (m *monitor) checkOnce(ctx context.Context) time.Duration {
	bound, cancel := context.WithTimeout(ctx, checkTimeout)
	seen := m.check(bound)
	cancel()
	if ctx.Err() != nil {
		return 0
	}
	if !seen.failed() && (seen.reconnected || !m.current().Answers()) {
		bound, cancel := context.WithTimeout(ctx, backTimeout)
		err := m.back(bound)
		cancel()
		if err != nil {
			seen = observation{lost: err.Error()}
		}
	}
	if h := m.observe(ctx, seen); h.Phase == Ready || h.Phase == Connected {
		return checkInterval
	}
	return retryInterval
}

// observe applies the result of a check.
func (m *monitor) observe(ctx context.Context, o observation) Health {
	m.mu.Lock()
	before := m.health
	now := before.after(o, time.Now())
	m.health = now
	m.once.Do(func() { close(m.asked) })
	close(m.observed)
	m.observed = make(chan struct{})
	switch {
	case before.Answers() && !now.Answers():
		m.endEra(m.refusal(now))
	case !before.Answers() && now.Answers():
		m.beginEra()
	}
	m.mu.Unlock()
	if before.Phase != now.Phase || before.Reason != now.Reason {
		m.report(ctx, before, now)
	}
	return now
}

func (m *monitor) report(ctx context.Context, before, now Health) {
	if before.Phase != now.Phase {
		entry := log.G(ctx).WithFields(log.Fields{"backend": m.name, "health": now.Phase, "before": before.Phase, "reason": now.Reason})
		if now.Phase == Ready {
			entry.Info("Backend became ready")
		} else {
			entry.Warn("Backend is not ready")
		}
	}
	m.changed(now)
}

// reason returns the text of an error without gRPC's prefix.
func reason(err error) string {
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}
