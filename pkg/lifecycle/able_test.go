package lifecycle

import (
	"errors"
	"slices"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// TestWhatHandlersCanDo: a probe that succeeds sets the capabilities, watchers get an event if
// the capabilities changed, and a probe that fails keeps them.
func TestWhatHandlersCanDo(t *testing.T) {
	b := &bed{
		t: t, dir: t.TempDir(), failures: map[string]error{"/k": errors.New("no kvm")}, pods: map[string]int{},
		able: map[string]capability.Answer{"/r": capability.Yes, "/k": capability.Yes},
	}
	b.open(conf("runc", "/r", "kata", "/k"))
	exec := func(name string) capability.Answer {
		h := test.Value(b.m.Handler(name))(t)
		return h.Capabilities.Of(capability.Exec).Answer
	}
	b.wait("runc's capabilities are known", func() bool { return exec("runc") != capability.Unknown })
	if exec("runc") != capability.Yes || exec("kata") != capability.Unknown {
		t.Errorf("exec of runc: %s, of kata, whose probe fails: %s", exec("runc"), exec("kata"))
	}
	generation, events := b.m.Current().Generation, b.m.Watch(t.Context())
	b.set(func() { b.able["/r"] = capability.No })
	for range 2 { // the second probe finds no change
		test.Must(t, test.Err(b.m.Probe(t.Context(), "runc", probe.Ask)))
	}
	if e := <-events; !slices.Equal(e.Handlers, []string{"runc"}) || e.Generation != generation {
		t.Errorf("watchers get %+v", e)
	}
	b.set(func() { b.failures["/r"] = errors.New("gone") })
	test.Must(t, test.Err(b.m.Probe(t.Context(), "runc", probe.Ask)))
	test.Equal(t, "exec of runc after a failed probe", exec("runc"), capability.No)
	if e := <-events; e.Generation == generation {
		t.Errorf("the event %+v has the generation from before runc became not ready", e)
	}
	select {
	case e := <-events:
		t.Errorf("watchers get %+v without a change", e)
	default:
	}
}
