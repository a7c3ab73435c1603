package router_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// A pod of berth's own takes the place of a pod until it leaves.
func TestGuestsCountAsPods(t *testing.T) {
	b := routertest.New("one")
	n := serveReady(t, table(t, 1, "a", limited("a", b, handler.Limits{MaxPods: 2, MaxParallelStarts: 1})), b)
	first, err := n.router.Admit(t.Context(), "a")
	if err != nil || first.Definition().Name != "a" {
		t.Fatal(err)
	}
	n.awaitStarts(t, "a", 1, 0)
	first.Started()
	n.awaitStarts(t, "a", 0, 0)
	if err := <-n.runAsync(t.Context(), "a", "pod"); err != nil {
		t.Fatalf("beside one guest: %v", err)
	}
	_, err = n.router.Admit(t.Context(), "a")
	if err == nil || !strings.Contains(err.Error(), "max_pods is 2") {
		t.Errorf("over max_pods: %v", err)
	}
	if err := <-n.runAsync(t.Context(), "a", "more"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a pod over max_pods: %v", err)
	}
	first.Leave()
	if err := <-n.runAsync(t.Context(), "a", "more"); err != nil {
		t.Errorf("in the place of a guest: %v", err)
	}
	n.awaitStarts(t, "a", 0, 0)
}

// A pod waits while a guest starts, and a guest that never starts lets it in.
func TestGuestsTakeTurns(t *testing.T) {
	b := routertest.New("one")
	n := serveReady(t, table(t, 1, "a", limited("a", b, handler.Limits{MaxParallelStarts: 1, MaxQueuedStarts: 1})), b)
	for name, let := range map[string]func(*router.Guest){
		"it started":    func(g *router.Guest) { g.Started() },
		"it was let go": func(g *router.Guest) { g.Leave() },
	} {
		g, err := n.router.Admit(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ended := n.runAsync(t.Context(), "a", name)
		n.awaitStarts(t, "a", 1, 1)
		let(g)
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		g.Leave()
		n.awaitStarts(t, "a", 0, 0)
	}
	g, err := n.router.Admit(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.router.Admit(ctx, "a"); err == nil {
		t.Error("it waited for ever")
	}
	g.Leave()
	n.awaitStarts(t, "a", 0, 0)
}

func TestGuestsAreRefused(t *testing.T) {
	b := routertest.New("one")
	cordoned := ready("a", b)
	cordoned.State = handler.State{Phase: handler.Cordoned, Reason: "a test"}
	n := serveReady(t, table(t, 1, "a", cordoned), b)
	if _, err := n.router.Admit(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "cordoned: a test") {
		t.Errorf("a cordoned handler: %v", err)
	}
	if _, err := n.router.Admit(t.Context(), "nothing"); err == nil {
		t.Error("a handler that is not there")
	}
}
