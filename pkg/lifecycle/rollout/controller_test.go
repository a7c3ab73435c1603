package rollout

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
)

var errBroke = errors.New("it broke")

// Failures of all pods on the node do not abort a rollout, and old failures do not count.
func TestFailuresBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost()
		for i := range 5 {
			h.c.Began("runc", stable(fmt.Sprint("stable", i)))
			h.c.Failed("runc", stable(fmt.Sprint("stable", i)), errBroke)
		}
		for i := range 9 {
			h.c.Failed("runc", candidate("a", fmt.Sprint(i)), errBroke)
		}
		one := h.c.tallies.running["runc"]
		if one.over || h.status().State != Running {
			t.Error("the rollout is aborted although no pod of the node can start")
		}
		time.Sleep(2 * window)
		for i := range 2 {
			h.c.Failed("runc", candidate("a", fmt.Sprint(i)), errBroke)
		}
		if one.over || len(one.candidate.failed) != 2 || len(one.stable.begun) != 0 || h.status().State != Running {
			t.Errorf("pods from before the window count: %+v", one)
		}
		h.c.Failed("runc", candidate("a", "2"), errBroke)
		if s := h.status(); s.State != Aborted || !s.ByItself || s.Reason != "3 of 3 pods on the candidate failed to start within 10m0s; last error: it broke" {
			t.Errorf("got %+v", s)
		}
		if len(h.c.tallies.running) != 0 {
			t.Error("the tally of a rollout that is over is kept")
		}
	})
}

// None of these failed pods belongs to a running rollout.
func TestPodsOfNoRollout(t *testing.T) {
	other := definition()
	other.Candidate.Path = "/elsewhere"
	none := known()
	none.Definition.Candidate = nil
	promoted := known()
	promoted.Decision = &Decision{State: Promoted, On: *promoted.Definition.Candidate}
	for name, c := range map[string]struct {
		view View
		pod  handler.Attempt
		of   string
	}{
		"another candidate":                       {known(), handler.Attempt{Definition: other.WithCandidate(), SHA256: "a"}, "runc"},
		"another program":                         {known(), candidate("b", ""), "runc"},
		"no Definition":                           {known(), handler.Attempt{}, "runc"},
		"no such handler":                         {known(), candidate("a", ""), "nobody"},
		"no rollout":                              {none, candidate("a", ""), "runc"},
		"a promoted candidate":                    {promoted, candidate("a", ""), "runc"},
		"a handler that has no usable Definition": {View{}, candidate("a", ""), "runc"},
	} {
		h := newHost()
		h.set(c.view)
		before := h.status()
		for i := range 9 {
			c.pod.Pod = fmt.Sprint(i)
			h.c.Failed(c.of, c.pod, errBroke)
		}
		if after := h.status(); len(h.c.tallies.running) != 0 || (after == nil) != (before == nil) || after != nil && *after != *before {
			t.Errorf("%s: the pod counts, the rollout is %+v", name, after)
		}
	}
}

// An abort that could not be stored is tried again with the next pod that fails.
func TestAbortThatFails(t *testing.T) {
	h := newHost()
	h.refuse = errors.New("no space left")
	fail := func(pods int) {
		for i := range pods {
			h.c.Failed("runc", candidate("a", fmt.Sprint(i)), errBroke)
		}
	}
	fail(3)
	if s := h.status(); s.State != Running {
		t.Fatalf("got %+v", s)
	}
	h.refuse = nil
	h.c.Began("runc", candidate("a", "good")) // a success does not retry the abort
	if s := h.status(); s.State != Running {
		t.Fatalf("got %+v", s)
	}
	fail(4)
	if s := h.status(); s.State != Aborted || !strings.HasPrefix(s.Reason, "3 of 4") {
		t.Errorf("got %+v", s)
	}

	h = newHost()
	h.stopping = true
	fail(3)
	if s := h.status(); s.State != Running {
		t.Errorf("a daemon that is stopping aborted the rollout: %+v", s)
	}
}

// A candidate that was removed from the configuration and added again begins a new
// rollout.
func TestKeepForgetsWhatIsOver(t *testing.T) {
	h := newHost()
	fail := func(pod string) { h.c.Failed("runc", candidate("a", pod), errBroke) }
	fail("1")
	fail("2")
	h.set(known()) // nothing has changed
	if len(h.c.tallies.running) != 1 {
		t.Error("the tally of a running rollout is dropped")
	}
	none := known()
	none.Definition.Candidate = nil
	h.set(none)
	h.set(known())
	fail("3")
	if s := h.status(); s.State != Running {
		t.Errorf("pods of an earlier rollout count: %+v", s)
	}
}

func TestPromoteAndAbort(t *testing.T) {
	h, ctx := newHost(), t.Context()
	if err := h.c.Promote(ctx, "runc"); err != nil || h.status().State != Promoted {
		t.Errorf("got %+v, %v", h.status(), err)
	}
	if err := h.c.Abort(ctx, "runc", " too \n slow "); err != nil || h.status().State != Aborted || h.status().Reason != "too slow" || h.status().ByItself {
		t.Errorf("got %+v, %v", h.status(), err)
	}
	if err := h.c.Abort(ctx, "runc", ""); err != nil || h.status().Reason != "aborted by an operator" {
		t.Errorf("got %+v, %v", h.status(), err)
	}
	test.Is(t, h.c.Abort(ctx, "runc", strings.Repeat("x", maxReason+1)), errdefs.IsInvalidArgument, "a reason that is too long")
	test.Is(t, h.c.Promote(ctx, "nobody"), errdefs.IsNotFound, "a handler that does not exist")
	none := known()
	none.Definition.Candidate = nil
	h.set(none)
	test.Is(t, h.c.Promote(ctx, "runc"), errdefs.IsFailedPrecondition, "a handler without a rollout")
}

// The last error of a pod can have any length and any bytes.
func TestReasonIsBounded(t *testing.T) {
	h := newHost()
	for i := range 3 {
		h.c.Failed("runc", candidate("a", fmt.Sprint(i)), errors.New(strings.Repeat("ä", 500)))
	}
	if s := h.status(); s.State != Aborted || len(s.Reason) > maxReason+len("…") || strings.ToValidUTF8(s.Reason, "") != s.Reason {
		t.Errorf("got %+v", s)
	}
}
