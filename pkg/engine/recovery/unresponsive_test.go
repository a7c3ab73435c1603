package recovery

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestUnresponsiveOnesAreAskedOnce(t *testing.T) {
	records, tasks := t.TempDir(), enginetest.NewUnresponsive(t).Tasks
	recorded := func(supervisor string) *pod.Sandbox {
		return enginetest.Sandbox(t, records, pod.SandboxSpec{Definition: &handler.Definition{Type: handler.OCI}, Supervisor: supervisor}, tasks)
	}
	unresponsive, neighbour, other := recorded("silent"), recorded("silent"), recorded("other")
	synctest.Test(t, func(t *testing.T) {
		r := &recovery{}
		began := time.Now()
		wait := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		fail := func(context.Context) error { return errUnresponsive }
		asked := func(s *pod.Sandbox) error {
			called := errors.New("it was asked")
			return r.ask(t.Context(), s, func(context.Context) error { return called })
		}

		stopping, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop)
		if err := r.ask(stopping, unresponsive, wait); !errors.Is(err, context.Canceled) || r.unresponsive.has("silent") {
			t.Errorf("after the end of the daemon the supervisor counts as unresponsive: %v", err)
		}
		_ = r.ask(t.Context(), other, fail)
		test.ErrorIs(t, r.ask(t.Context(), unresponsive, wait), context.DeadlineExceeded, "the first call")
		for range 100 {
			if err := r.ask(t.Context(), neighbour, wait); !errors.Is(err, errUnresponsive) {
				t.Fatalf("a call for another sandbox of the same supervisor: %v", err)
			}
		}
		test.Equal(t, "the time that an unresponsive supervisor costs", time.Since(began), task.RecoveryAnswer+time.Second)
		if err := asked(other); err == nil || errors.Is(err, errUnresponsive) {
			t.Errorf("a supervisor that answered with an error counts as unresponsive: %v", err)
		}
	})
}
