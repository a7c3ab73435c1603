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
	// checkTimeout is how long a daemon may take to say that it is there.
	checkTimeout = 2 * time.Second
	// calm is the time between checks of a daemon that answers.
	calm = 5 * time.Second
	// backTimeout is how long it may take to be asked and told everything.
	backTimeout = 30 * time.Second
	// quick is the time between checks of one that does not.
	quick = 500 * time.Millisecond
)

// monitor knows how one daemon is. It lets calls through while the daemon
// answers, and ends those that are under way when it is taken to be down.
type monitor struct {
	// name says in errors which daemon it is.
	name string
	// check asks the daemon how it is.
	check func(context.Context) observation
	// back is called, and has to succeed, before the daemon counts as answering
	// again after it was down, or was connected to anew.
	back func(context.Context) error
	// changed hears of every change of phase or reason.
	changed func(Health)

	kicks chan struct{}
	// asked is closed when the daemon was asked for the first time, before anybody
	// hears what it said.
	asked chan struct{}
	once  sync.Once

	mu     sync.Mutex
	health Health
	// era is the time in which the daemon answers; ended while it is down.
	era    context.Context
	ending context.CancelCauseFunc
	// turned is closed at the next change of health.
	turned chan struct{}
}

func newMonitor(name string, check func(context.Context) observation, back func(context.Context) error, changed func(Health)) *monitor {
	m := &monitor{name: name, check: check, back: back, changed: changed, kicks: make(chan struct{}, 1), asked: make(chan struct{}), turned: make(chan struct{})}
	m.health = Health{Phase: Down, Reason: notAsked, Since: time.Now()}
	m.begin()
	m.ending(m.refusal(m.health))
	return m
}

// begin begins an era; mu is held, or nobody else has m.
func (m *monitor) begin() { m.era, m.ending = context.WithCancelCause(context.Background()) }

// current is how the daemon is.
func (m *monitor) current() Health {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.health
}

type aheadKey struct{}

// ahead is a context whose calls go to a daemon that still counts as down.
func ahead(ctx context.Context) context.Context { return context.WithValue(ctx, aheadKey{}, true) }

// admit returns the era that a call belongs to, or why there is none.
func (m *monitor) admit(ctx context.Context) (context.Context, error) {
	if ctx.Value(aheadKey{}) != nil {
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
		answers, turned := m.health.Answers(), m.turned
		m.mu.Unlock()
		if answers {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-turned:
		}
	}
}

// refusal is what a call to a daemon that is down ends with.
func (m *monitor) refusal(h Health) error {
	return status.Error(codes.Unavailable, fmt.Sprintf("%s has been down since %s: %s",
		m.name, h.Since.UTC().Format(time.RFC3339), h.Reason))
}

// slow is what a list of a lagging daemon ends with.
func (m *monitor) slow() error {
	return status.Error(codes.DeadlineExceeded, fmt.Sprintf("%s: %s", m.name, m.current().Reason))
}

// suspect has the daemon checked at once, because a call met a lost connection.
func (m *monitor) suspect() {
	select {
	case m.kicks <- struct{}{}:
	default:
	}
}

// cannotSay begins the reason of a daemon whose lists fail.
const cannotSay = "it responds, but cannot list its pods: "

// run checks until ctx is done.
func (m *monitor) run(ctx context.Context) {
	for {
		wait := m.look(ctx)
		select {
		case <-ctx.Done():
			m.Note(ctx, observation{lost: "this berth no longer uses it"})
			return
		case <-time.After(wait):
		case <-m.kicks:
		}
	}
}

// look checks once, and returns after how long to check again.
func (m *monitor) look(ctx context.Context) time.Duration {
	bound, cancel := context.WithTimeout(ctx, checkTimeout)
	seen := m.check(bound)
	cancel()
	if ctx.Err() != nil {
		return 0
	}
	if !seen.failed() && (seen.anew || !m.current().Answers()) {
		bound, cancel := context.WithTimeout(ctx, backTimeout)
		err := m.back(bound)
		cancel()
		if err != nil {
			seen = observation{lost: cannotSay + reason(err)}
		}
	}
	if h := m.Note(ctx, seen); h.Phase == Ready || h.Phase == Connected {
		return calm
	}
	return quick
}

// Note takes over what was seen.
func (m *monitor) Note(ctx context.Context, o observation) Health {
	m.mu.Lock()
	before := m.health
	now := before.after(o, time.Now())
	m.health = now
	m.once.Do(func() { close(m.asked) })
	close(m.turned)
	m.turned = make(chan struct{})
	switch {
	case before.Answers() && !now.Answers():
		m.ending(m.refusal(now))
	case !before.Answers() && now.Answers():
		m.begin()
	}
	m.mu.Unlock()
	if before.Phase != now.Phase || before.Reason != now.Reason {
		m.tell(ctx, before, now)
	}
	return now
}

func (m *monitor) tell(ctx context.Context, before, now Health) {
	if before.Phase != now.Phase {
		entry := log.G(ctx).WithFields(log.Fields{"backend": m.name, "health": now.Phase, "before": before.Phase, "reason": now.Reason})
		if now.Phase == Ready {
			entry.Info("Backend became ready")
		} else {
			entry.Warn("Backend became unready")
		}
	}
	m.changed(now)
}

// reason is the text of an error without gRPC's words around it.
func reason(err error) string {
	if st, ok := status.FromError(err); ok {
		return st.Message()
	}
	return err.Error()
}
