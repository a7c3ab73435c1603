package overhead

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/handler"
)

// node has pods, runs self-check pods, and lets them in.
type node struct {
	mu   sync.Mutex
	pods map[string]Pods
	// looks counts the readings of pods.
	looks int
	// hangs, if set, is what a reading waits for.
	hangs chan struct{}
	// fails is the self-check pod that does not start, breaks says what comes of removals.
	fails  int
	breaks error
	// blind says why pods cannot be read.
	blind error
	// begun, there and places are self-check pods and places under limits.
	begun, there, places, started int
	d                             *handler.Definition
}

func (n *node) Pods(context.Context) (map[string]Pods, error) {
	if n.hangs != nil {
		<-n.hangs
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks++
	return maps.Clone(n.pods), n.blind
}

func (n *node) SelfCheck(_ context.Context, d *handler.Definition) (SelfCheck, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d != n.d {
		return nil, fmt.Errorf("it is to run by %v", d)
	}
	if n.begun++; n.begun == n.fails {
		return nil, errors.New("the runtime is broken")
	}
	n.there++
	return &runs{n}, nil
}

type runs struct{ *node }

func (r *runs) Remove() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.there--
	return r.breaks
}

func (n *node) Read(_ context.Context, all []SelfCheck) ([]Reading, error) {
	readings := make([]Reading, len(all))
	for i := range all {
		readings[i] = Reading{fmt.Sprint(i), []Part{{fmt.Sprint(i), uint64(i+1) * mi, time.Duration(n.looks), 1}}}
	}
	return readings, nil
}

type held struct{ *node }

func (n *node) Admit(_ context.Context, name string) (Place, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if name != n.d.Name {
		return nil, errdefs.ErrNotFound
	}
	n.places++
	return held{n}, nil
}

func (h held) Definition() *handler.Definition { return h.d }
func (h held) Started()                        { h.mu.Lock(); h.started++; h.mu.Unlock() }
func (h held) Leave()                          { h.mu.Lock(); h.places--; h.mu.Unlock() }

func newNode(t *testing.T) (*node, *Meter) {
	t.Helper()
	n := &node{d: &handler.Definition{Name: "runc", Type: handler.OCI, Path: "/runc"}, pods: map[string]Pods{}}
	return n, New(t.Context(), Options{Source: n, Admission: n, Ready: func() bool { return true }})
}

func TestOf(t *testing.T) { synctest.Test(t, testOf) }

func testOf(t *testing.T) {
	n, m := newNode(t)
	if r := m.Of(t.Context(), n.d); r.Live != nil || r.Best() != nil || r.NoLive != "it has no pods" {
		t.Errorf("without pods: %+v", r)
	}
	n.pods["runc"] = Pods{Readings: []Reading{{"a", []Part{{"p", 5 * mi, 0, 1}}}}, Declared: []Declared{{3 * mi, 0}, {9 * mi, 7}}}
	if r := m.Of(t.Context(), n.d); r.Live != nil || n.looks != 1 {
		t.Errorf("%d looks within a moment: %+v", n.looks, r)
	}
	m.last.at = m.last.at.Add(-pace)
	r := m.Of(t.Context(), n.d)
	if r.Live == nil || r.Live.Pods != 1 || r.Live.Memory.P95 != 5*mi || r.Live.CPUPods != 0 || r.Declared != (Declared{3 * mi, 7}) || r.NoLive != "" {
		t.Errorf("with a pod: %+v", r)
	}
	if !strings.Contains(r.Above(), "5Mi of memory") {
		t.Errorf("no warning: %q", r.Above())
	}
	m.last.at = m.last.at.Add(-pace)
	if r = m.Of(t.Context(), n.d); r.Live.CPUPods != 1 || r.Live.Window < pace {
		t.Errorf("at the second look: %+v", r.Live)
	}
	for why, c := range map[string]struct {
		d *handler.Definition
		p Pods
	}{
		"separate kernel":                     {n.d, Pods{OwnKernel: 2}},
		"failed to measure 2 of its pods: it": {n.d, Pods{Unread: 2, Why: "it"}},
		"another daemon":                      {&handler.Definition{Name: "runc", Type: handler.CRI}, Pods{}},
	} {
		n.pods["runc"] = c.p
		m.last.at = m.last.at.Add(-pace)
		if r := m.Of(t.Context(), c.d); r.Live != nil || !strings.Contains(r.NoLive, why) {
			t.Errorf("%s: %+v", why, r)
		}
	}
	m.o.Ready = func() bool { return false }
	if r := m.Of(t.Context(), n.d); r.NoLive == "" {
		t.Error("pods are known before they are recovered")
	}
	if _, err := m.Measure(t.Context(), n.d, Request{Pods: 1}, func(Step) {}); !errdefs.IsUnavailable(err) {
		t.Errorf("self-check pods before pods are recovered: %v", err)
	}
}

func TestNextWindow(t *testing.T) {
	pods := func(cpu time.Duration) map[string]Pods {
		return map[string]Pods{"runc": {Readings: []Reading{{"a", []Part{{"p", mi, cpu, 1}}}}}}
	}
	at := time.Now()
	first := next(nil, at, pods(0))
	for window, known := range map[time.Duration]bool{
		minWindow / 2: false, minWindow: true, pace: true, maxWindow: true, 2 * maxWindow: false,
	} {
		e := next(first, at.Add(window), pods(time.Second)).estimates["runc"]
		if (e.CPUPods == 1) != known || known != (e.Window == window) {
			t.Errorf("after %v: %+v", window, e)
		}
		if known && e.CPU.Max != uint64(time.Second*1e9/window) {
			t.Errorf("after %v: %d", window, e.CPU.Max)
		}
	}
}

func TestMeasure(t *testing.T) { synctest.Test(t, testMeasure) }

func testMeasure(t *testing.T) {
	n, m := newNode(t)
	var steps []string
	r, err := m.Measure(t.Context(), n.d, Request{Pods: 3, Window: minWindow}, func(s Step) {
		steps = append(steps, fmt.Sprintf("%s %d/%d", s.Doing, s.Done, s.All))
	})
	if err != nil || r.SelfCheck == nil || r.SelfCheck.Pods != 3 || r.SelfCheck.Memory != (Distribution{2 * mi, 3 * mi, 3 * mi}) || r.SelfCheck.CPUPods != 3 || r.Live != nil {
		t.Fatalf("%+v, %v", r.SelfCheck, err)
	}
	if want := "starting 0/3, starting 1/3, starting 2/3, settling 3/3, watching 3/3, removing 0/3"; strings.Join(steps, ", ") != want {
		t.Errorf("steps %v", steps)
	}
	if n.there != 0 || n.places != 0 || n.started != 3 {
		t.Errorf("%d self-check pods and %d places are left, %d were started", n.there, n.places, n.started)
	}
	if r := m.Of(t.Context(), n.d); r.SelfCheck == nil {
		t.Error("what was measured is forgotten")
	}
	other := *n.d
	other.Path = "/crun"
	if r := m.Of(t.Context(), &other); r.SelfCheck != nil {
		t.Error("what was measured is told of another runtime")
	}
}

func TestMeasureTellsWithoutLivePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, m := newNode(t)
		n.blind = errors.New("too slow")
		r, err := m.Measure(t.Context(), n.d, Request{Pods: 1, Window: minWindow}, func(Step) {})
		if err != nil || r.SelfCheck == nil || r.NoLive != "its pods are not measured yet" {
			t.Errorf("%+v, %v", r, err)
		}
	})
}

func TestMeasureLeavesNothing(t *testing.T) { synctest.Test(t, testMeasureLeavesNothing) }

func testMeasureLeavesNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for name, c := range map[string]struct {
		ctx  context.Context
		set  func(*node)
		at   string
		want string
	}{
		"one does not start": {t.Context(), func(n *node) { n.fails = 3 }, "", "self-check pod 3 of 4: the runtime is broken"},
		"interrupted":        {ctx, func(*node) {}, "settling", "canceled"},
		"removals fail":      {t.Context(), func(n *node) { n.breaks = errors.New("it is busy") }, "", "not removed yet: it is busy"},
	} {
		n, m := newNode(t)
		c.set(n)
		_, err := m.Measure(c.ctx, n.d, Request{Pods: 4, Window: minWindow}, func(s Step) {
			if s.Doing == c.at {
				cancel()
			}
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if n.there != 0 || n.places != 0 {
			t.Errorf("%s: %d self-check pods and %d places are left", name, n.there, n.places)
		}
		if m.measuring["runc"] {
			t.Errorf("%s: it is being measured for ever", name)
		}
	}
}

func TestMeasureRefuses(t *testing.T) { synctest.Test(t, testMeasureRefuses) }

func testMeasureRefuses(t *testing.T) {
	n, m := newNode(t)
	for _, r := range []Request{{Pods: -1}, {Pods: MaxPods + 1}, {Window: time.Millisecond}, {Window: time.Hour}, {Window: -time.Second}} {
		if _, err := m.Measure(t.Context(), n.d, r, func(Step) {}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	elsewhere := &handler.Definition{Name: "runc", Type: handler.CRI}
	if _, err := m.Measure(t.Context(), elsewhere, Request{Pods: 1}, func(Step) {}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("another daemon's: %v", err)
	}
	if r, err := m.Measure(t.Context(), elsewhere, Request{}, func(Step) {}); err != nil || r.NoLive == "" {
		t.Errorf("another daemon's: %+v, %v", r, err)
	}
	m.measuring["runc"] = true
	if _, err := m.Measure(t.Context(), n.d, Request{Pods: 1}, func(Step) {}); !errdefs.IsUnavailable(err) {
		t.Errorf("two at a time: %v", err)
	}
	if n.begun != 0 {
		t.Errorf("%d self-check pods were started", n.begun)
	}
}

func TestAReadingThatHangs(t *testing.T) { synctest.Test(t, testAReadingThatHangs) }

// It keeps one waiting for a while, nobody after that, and counts when it is there.
func testAReadingThatHangs(t *testing.T) {
	n, m := newNode(t)
	n.hangs = make(chan struct{})
	n.pods["runc"] = Pods{Readings: []Reading{{"a", []Part{{"p", mi, 0, 1}}}}}
	begun := time.Now()
	if r := m.Of(t.Context(), n.d); r.Live != nil || r.NoLive != "its pods are not measured yet" || time.Since(begun) != readPatience {
		t.Errorf("after %v: %+v", time.Since(begun), r)
	}
	for range 3 {
		m.Of(t.Context(), n.d)
	}
	if waited := time.Since(begun); waited != readPatience {
		t.Errorf("all waited %v", waited)
	}
	close(n.hangs)
	synctest.Wait()
	if r := m.Of(t.Context(), n.d); r.Live == nil {
		t.Errorf("when it is there: %+v", r)
	}
}
