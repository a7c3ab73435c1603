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
	// maxAge is the age from which a request starts a new reading. The old one is reported if the
	// new one fails or takes longer than readPatience.
	maxAge = time.Minute
	// readPatience is how long a caller waits for a reading. A reading that takes longer is used
	// once it ends.
	readPatience = 3 * time.Second
	// minWindow and maxWindow limit the time between two readings from which CPU use is computed.
	minWindow, maxWindow = time.Second, 10 * time.Minute
)

// Pods are the ready pods of one handler.
type Pods struct {
	// Readings are of pods with overhead that can be separated from their containers.
	Readings []Reading
	// Inside counts pods with containers that run inside the measured processes.
	Inside int
	// Unread counts pods that could not be read; Why is the reason for one of them.
	Unread int
	Why    string
	// Declared has the reservation of each pod, including the pods counted by Inside.
	Declared []Declared
}

// Options configure a Meter. All fields are required.
type Options struct {
	Pods func(ctx context.Context) (map[string]Pods, error)
	// Ready reports whether the pods of the node are known.
	Ready func() bool
}

// Meter measures the overhead of handlers. It is safe for concurrent use.
type Meter struct {
	o   Options
	log *log.Entry

	reads singleflight.Group

	mu   sync.Mutex
	last *snapshot
	// late means that the current reading exceeded a caller's patience: no other caller waits for
	// it.
	late  bool
	taken uint64
	// warned marks the handlers with a logged warning that still holds.
	warned map[string]bool
}

// snapshot is one reading of all live pods, with the estimates from it.
type snapshot struct {
	at time.Time
	// first means that no reading precedes it, so that CPU use is unknown.
	first     bool
	pods      map[string]Pods
	estimates map[string]*Estimate
}

// New returns a Meter that logs warnings to the log of ctx.
func New(ctx context.Context, o Options) *Meter {
	return &Meter{o: o, log: log.G(ctx), warned: map[string]bool{}}
}

// Of returns the overhead of a handler. It reads the live pods unless a reading is at most a minute
// old; the second reading may follow the first after one second.
func (m *Meter) Of(ctx context.Context, d *handler.Definition) Report {
	if !m.o.Ready() {
		return Report{Handler: d.Name, NoLive: "the pods of this node are not recovered yet"}
	}
	if err := m.refresh(ctx, maxAge); err != nil {
		m.log.WithError(err).Debug("Failed to read pod overhead")
	}
	return m.report(d)
}

// refresh reads the live pods, unless a reading is younger than age. Concurrent callers share one
// reading.
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
	read := m.reads.DoChan("", func() (any, error) {
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
		m.late = m.taken == taken // false if the reading ended at this moment
		m.mu.Unlock()
		return fmt.Errorf("reading pod usage took more than %v: %w", readPatience, errdefs.ErrUnavailable)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next computes estimates from a reading and the one before, which may be nil. Pure.
func next(last *snapshot, at time.Time, pods map[string]Pods) *snapshot {
	l := &snapshot{at: at, first: last == nil, pods: pods, estimates: map[string]*Estimate{}}
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
		var samples []sample
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

// report returns the known overhead. It logs a warning when the overhead begins to exceed the
// declared one.
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
	if above != "" && !m.warned[d.Name] {
		m.log.WithFields(log.Fields{"handler": d.Name, "reason": above}).Warn("Pods of handler exceed its declared overhead")
	}
	m.warned[d.Name] = above != ""
	return r
}

// whyNot returns why live pods have no estimate. Pure.
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
