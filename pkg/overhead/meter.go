package overhead

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sync/singleflight"

	"github.com/berth-cri/berth/pkg/handler"
)

const (
	// pace is how old what is known of live pods may be when somebody asks.
	pace = time.Minute
	// readPatience is how long who asks waits for a reading. One that takes longer
	// counts when it is there.
	readPatience = 3 * time.Second
	// The time between two readings of which CPU use is told.
	minWindow, maxWindow = time.Second, 10 * time.Minute
)

// Pods are the ready pods of one handler.
type Pods struct {
	// Readings are of those of which it can be told apart what is the containers'.
	Readings []Reading
	// Inside counts those whose containers run inside of what is measured.
	Inside int
	// Unread counts those that could not be read, and Why says why one of them was not.
	Unread int
	Why    string
	// Declared has what is reserved for each pod, those of Inside included.
	Declared []Declared
}

// Options are what a Meter needs. All are required.
type Options struct {
	Pods func(ctx context.Context) (map[string]Pods, error)
	// Ready says whether the pods of the node are known.
	Ready func() bool
}

// Meter knows the overhead of handlers. Its methods may be called at any time from
// any goroutine.
type Meter struct {
	o   Options
	log *log.Entry

	flight singleflight.Group

	mu   sync.Mutex
	last *look
	// late says that the reading that is under way has kept somebody waiting for long:
	// nobody else waits for it.
	late  bool
	taken uint64
	// told are the warnings that hold, by handler.
	told map[string]bool
}

// look is one reading of all live pods, with what follows from it.
type look struct {
	at time.Time
	// first says that there was none before, so that CPU use is not known.
	first     bool
	pods      map[string]Pods
	estimates map[string]*Estimate
}

// New makes a Meter. The log of ctx is where warnings go.
func New(ctx context.Context, o Options) *Meter {
	return &Meter{o: o, log: log.G(ctx), told: map[string]bool{}}
}

// Of says what is known of a handler. Its live pods are read if that was not done
// within the last minute; a second time already soon after the first.
func (m *Meter) Of(ctx context.Context, d *handler.Definition) Report {
	if !m.o.Ready() {
		return Report{Handler: d.Name, NoLive: "the pods of this node are not recovered yet"}
	}
	if err := m.refresh(ctx, pace); err != nil {
		m.log.WithError(err).Debug("Failed to read pod overhead")
	}
	return m.report(d)
}

// refresh reads live pods, unless that was done within age. Those who come while
// it is being done wait for that.
func (m *Meter) refresh(ctx context.Context, age time.Duration) error {
	m.mu.Lock()
	if m.last != nil && m.last.first {
		age = min(age, minWindow)
	}
	fresh := m.last != nil && time.Since(m.last.at) < age
	patience, taken := readPatience, m.taken
	if m.late {
		patience = 0
	}
	m.mu.Unlock()
	if fresh {
		return nil
	}
	read := m.flight.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxWindow)
		defer cancel()
		pods, err := m.o.Pods(ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.late = false
		m.taken++
		if err == nil {
			m.last = next(m.last, time.Now(), pods)
		}
		return nil, err
	})
	wait := time.NewTimer(patience)
	defer wait.Stop()
	select {
	case r := <-read:
		return r.Err
	case <-wait.C:
		m.mu.Lock()
		m.late = m.taken == taken // it may have ended this very moment
		m.mu.Unlock()
		return fmt.Errorf("reading pod usage took more than %v: %w", readPatience, errdefs.ErrUnavailable)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next makes estimates of a reading and the one before, which may be nil. Pure.
func next(last *look, at time.Time, pods map[string]Pods) *look {
	l := &look{at: at, first: last == nil, pods: pods, estimates: map[string]*Estimate{}}
	before, window := map[string]*Reading{}, time.Duration(0)
	if last != nil {
		if window = at.Sub(last.at); window < minWindow || window > maxWindow {
			window = 0
		}
		for _, p := range last.pods {
			for i := range p.Readings {
				before[p.Readings[i].Pod] = &p.Readings[i]
			}
		}
	}
	for name, p := range pods {
		var samples []Sample
		for _, r := range p.Readings {
			samples = append(samples, sampleBetween(before[r.Pod], r, window))
		}
		if e := estimateOf(samples); e != nil {
			e.At = at
			if e.CPUPods > 0 {
				e.Window = window
			}
			l.estimates[name] = e
		}
	}
	return l
}

// report is what is known now. A warning that begins to hold goes to the log.
func (m *Meter) report(d *handler.Definition) Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := Report{Handler: d.Name}
	var p Pods
	if m.last != nil {
		p, r.Live = m.last.pods[d.Name], m.last.estimates[d.Name]
	}
	r.Declared = least(p.Declared)
	if r.Live == nil {
		r.NoLive = whyNot(d, p, m.last != nil)
	}
	above := r.Above()
	if above != "" && !m.told[d.Name] {
		m.log.WithFields(log.Fields{"handler": d.Name, "reason": above}).Warn("Pods of handler exceed its declared overhead")
	}
	m.told[d.Name] = above != ""
	return r
}

// whyNot says why there is no estimate of live pods. Pure.
func whyNot(d *handler.Definition, p Pods, read bool) string {
	switch {
	case d.Type == handler.CRI:
		return "its pods belong to another daemon, whose processes berth cannot attribute to pods"
	case !read:
		return "its pods are not measured yet"
	case p.Unread > 0:
		return fmt.Sprintf("failed to measure %d of its pods: %s", p.Unread, p.Why)
	case p.Inside > 0:
		return "its containers run on a separate kernel, whose memory includes theirs"
	}
	return "it has no pods"
}
