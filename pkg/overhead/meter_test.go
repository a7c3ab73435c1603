package overhead

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

// node is a node whose pods the test sets.
type node struct {
	mu   sync.Mutex
	pods map[string]Pods
	// looks counts the calls of read that finished.
	looks int
	// hangs, if set, blocks read until it is closed.
	hangs chan struct{}
	d     *handler.Definition
}

func (n *node) read(context.Context) (map[string]Pods, error) {
	if n.hangs != nil {
		<-n.hangs
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.looks++
	return maps.Clone(n.pods), nil
}

func newNode(t *testing.T) (*node, *Meter) {
	t.Helper()
	n := &node{d: &handler.Definition{Name: "runc", Type: handler.OCI, Path: "/runc"}, pods: map[string]Pods{}}
	return n, New(t.Context(), Options{Pods: n.read, Ready: func() bool { return true }})
}

func TestOf(t *testing.T) { synctest.Test(t, testOf) }

func testOf(t *testing.T) {
	n, m := newNode(t)
	if r := m.Of(t.Context(), n.d); r.Live != nil || r.NoLive != "it has no pods" {
		t.Errorf("without pods: %+v", r)
	}
	n.pods["runc"] = Pods{Readings: []Reading{{"a", []Part{{"p", 5 * mi, 0, 1}}}}, Declared: []Declared{{3 * mi, 0}, {9 * mi, 7}}}
	if r := m.Of(t.Context(), n.d); r.Live != nil || n.looks != 1 {
		t.Errorf("%d readings within maxAge: %+v", n.looks, r)
	}
	m.last.at = m.last.at.Add(-maxAge)
	r := m.Of(t.Context(), n.d)
	if r.Live == nil || r.Live.Pods != 1 || r.Live.Memory.P95 != 5*mi || r.Live.CPUPods != 0 || r.Declared != (Declared{3 * mi, 7}) || r.NoLive != "" {
		t.Errorf("with a pod: %+v", r)
	}
	if !strings.Contains(r.Above(), "5Mi of memory") {
		t.Errorf("no warning: %q", r.Above())
	}
	m.last.at = m.last.at.Add(-maxAge)
	if r = m.Of(t.Context(), n.d); r.Live.CPUPods != 1 || r.Live.Window < maxAge {
		t.Errorf("at the second reading: %+v", r.Live)
	}
	for why, c := range map[string]struct {
		d *handler.Definition
		p Pods
	}{
		"separate kernel":                     {n.d, Pods{Inside: 2}},
		"failed to measure 2 of its pods: it": {n.d, Pods{Unread: 2, Why: "it"}},
		"another daemon":                      {&handler.Definition{Name: "runc", Type: handler.CRI}, Pods{}},
	} {
		n.pods["runc"] = c.p
		m.last.at = m.last.at.Add(-maxAge)
		if r := m.Of(t.Context(), c.d); r.Live != nil || !strings.Contains(r.NoLive, why) {
			t.Errorf("%s: %+v", why, r)
		}
	}
	m.o.Ready = func() bool { return false }
	if r := m.Of(t.Context(), n.d); r.NoLive == "" {
		t.Error("pods are measured before Ready")
	}
}

func TestNextWindow(t *testing.T) {
	pods := func(cpu time.Duration) map[string]Pods {
		return map[string]Pods{"runc": {Readings: []Reading{{"a", []Part{{"p", mi, cpu, 1}}}}}}
	}
	at := time.Now()
	first := next(nil, at, pods(0))
	for window, known := range map[time.Duration]bool{
		minWindow / 2: false, minWindow: true, maxAge: true, maxWindow: true, 2 * maxWindow: false,
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

func TestAReadingThatHangs(t *testing.T) { synctest.Test(t, testAReadingThatHangs) }

// A reading that hangs delays only the first call, up to readPatience. Its late result is used.
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
	test.Equal(t, "time of all calls", time.Since(begun), readPatience)
	close(n.hangs)
	synctest.Wait()
	if r := m.Of(t.Context(), n.d); r.Live == nil {
		t.Errorf("after the late result: %+v", r)
	}
}
