package overhead

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/berth-cri/berth/pkg/handler"
)

const (
	// MaxPods is how many self-check pods may run at a time: more than a p95 needs, and
	// well below what a kubelet lets a node have.
	MaxPods = 50
	// DefaultWindow is how long CPU time is watched if nobody says.
	DefaultWindow = 5 * time.Second
	// longestWindow bounds what somebody may say.
	longestWindow = 5 * time.Minute
	// settling is how long self-check pods are left alone before they are watched, so
	// that what only started them is gone.
	settling = 2 * time.Second
	// removedAtOnce bounds the load that their removal is.
	removedAtOnce = 4
)

// Request says how to measure.
type Request struct {
	// Pods is how many self-check pods to run; with 0 the live pods are read.
	Pods int
	// Window is how long CPU time is watched; 0 is DefaultWindow.
	Window time.Duration
}

func (r *Request) complete() error {
	if r.Window == 0 {
		r.Window = DefaultWindow
	}
	switch {
	case r.Pods < 0 || r.Pods > MaxPods:
		return fmt.Errorf("%d self-check pods: must be from 1 to %d, or 0 to measure existing pods: %w", r.Pods, MaxPods, errdefs.ErrInvalidArgument)
	case r.Window < minWindow || r.Window > longestWindow:
		return fmt.Errorf("window %v: must be from %v to %v: %w", r.Window, minWindow, longestWindow, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Step is how far a measurement has come.
type Step struct {
	// Doing is "starting", "settling", "watching" or "removing".
	Doing string
	// Done of All pods are started, or removed.
	Done, All int
}

// Measure reads a handler's live pods twice, or runs self-check pods, all at the same
// time, and reads those. progress is called before each step, from this goroutine.
// When it returns no self-check pod is left, or the error says that one is; it goes
// away later.
func (m *Meter) Measure(ctx context.Context, d *handler.Definition, r Request, progress func(Step)) (Report, error) {
	if err := r.complete(); err != nil {
		return Report{}, err
	}
	if !m.o.Ready() {
		return Report{}, fmt.Errorf("%w: %w", errNotReady, errdefs.ErrUnavailable)
	}
	if r.Pods == 0 {
		if err := m.watch(ctx, d, r.Window, progress); err != nil {
			return Report{}, err
		}
		return m.report(d), nil
	}
	if d.Type == handler.CRI {
		return Report{}, errNoSelfChecks(d.Name)
	}
	if !m.begin(d.Name) {
		return Report{}, errBusy(d.Name)
	}
	defer m.end(d.Name)
	e, ran, err := m.selfCheck(ctx, d.Name, r, progress)
	if e != nil {
		m.keep(ran, e)
	}
	if err != nil {
		return Report{}, err
	}
	// For what is declared. What was measured is told all the same.
	if err := m.refresh(ctx, pace); err != nil {
		m.log.WithError(err).Debug("Failed to read pod overhead")
	}
	return m.report(d), nil
}

// watch reads live pods at the beginning and at the end of a window.
func (m *Meter) watch(ctx context.Context, d *handler.Definition, window time.Duration, progress func(Step)) error {
	if d.Type == handler.CRI {
		return nil // there is nothing to read
	}
	if err := m.refresh(ctx, 0); err != nil {
		return err
	}
	m.mu.Lock()
	pods := len(m.last.pods[d.Name].Readings)
	m.mu.Unlock()
	if pods == 0 {
		return nil
	}
	progress(Step{"watching", pods, pods})
	if err := pause(ctx, window); err != nil {
		return err
	}
	return m.refresh(ctx, 0)
}

// self-check pod measures pods of berth's own, and says what they ran by.
func (m *Meter) selfCheck(ctx context.Context, name string, r Request, progress func(Step)) (e *Estimate, ran *handler.Definition, err error) {
	var all []SelfCheck
	var places []Place
	defer func() {
		if len(all) > 0 {
			progress(Step{"removing", 0, len(all)})
		}
		if left := remove(all); left != nil {
			err = errors.Join(err, fmt.Errorf("self-check pods that are not removed yet: %w", left))
		}
		for _, p := range places {
			p.Leave()
		}
	}()
	for n := range r.Pods {
		progress(Step{"starting", n, r.Pods})
		place, err := m.o.Admission.Admit(ctx, name)
		if err != nil {
			return nil, nil, fmt.Errorf("self-check pod %d of %d: %w", n+1, r.Pods, err)
		}
		places = append(places, place)
		c, err := m.o.Source.SelfCheck(ctx, place.Definition())
		if err != nil {
			return nil, nil, fmt.Errorf("self-check pod %d of %d: %w", n+1, r.Pods, err)
		}
		place.Started()
		all, ran = append(all, c), place.Definition()
	}
	progress(Step{"settling", r.Pods, r.Pods})
	if err := pause(ctx, settling); err != nil {
		return nil, nil, err
	}
	before, err := m.o.Source.Read(ctx, all)
	if err != nil {
		return nil, nil, err
	}
	begun := time.Now()
	progress(Step{"watching", r.Pods, r.Pods})
	if err := pause(ctx, r.Window); err != nil {
		return nil, nil, err
	}
	after, err := m.o.Source.Read(ctx, all)
	if err != nil {
		return nil, nil, err
	}
	window := time.Since(begun)
	var samples []Sample
	for i := range after {
		samples = append(samples, Between(&before[i], after[i], window))
	}
	e = Estimated(samples)
	e.At, e.Window = time.Now(), window
	return e, ran, nil
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// remove removes all, whatever comes of some.
func remove(all []SelfCheck) error {
	errs := make([]error, len(all))
	g := errgroup.Group{}
	g.SetLimit(removedAtOnce)
	for i, c := range all {
		g.Go(func() error { errs[i] = c.Remove(); return nil })
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

func (m *Meter) begin(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.measuring[name] {
		return false
	}
	m.measuring[name] = true
	return true
}

func (m *Meter) end(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.measuring, name)
}

func (m *Meter) keep(d *handler.Definition, e *Estimate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.selfChecks[d.Name] = selfCheckEstimate{e, d.Digest()}
}
