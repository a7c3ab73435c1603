package network

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func TestHealthLooksAtMostOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int32
		var state error
		h := &health{
			check: func(context.Context) error { looks.Add(1); return state },
			ask:   func(context.Context) error { return nil },
		}
		for range 10 {
			test.Must(t, h.status())
		}
		if n := looks.Load(); n != 1 {
			t.Errorf("checked %d times", n)
		}
		state = errors.New("gone")
		test.Checkf(t, h.status(), "the cached status")
		time.Sleep(checkInterval)
		if err := h.status(); !errors.Is(err, state) {
			t.Errorf("got %v after a second", err)
		}
	})
}

func TestHealthDoesNotWaitForADiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		var looks atomic.Int32
		h := &health{
			check: func(context.Context) error { looks.Add(1); <-hang; return nil },
			ask:   func(context.Context) error { return nil },
		}
		for range 5 {
			started := time.Now()
			test.Is(t, h.status(), errdefs.IsUnavailable, "the status while the check hangs")
			if took := time.Since(started); took > checkWait {
				t.Errorf("the status took %v", took)
			}
			time.Sleep(checkInterval)
		}
		if n := looks.Load(); n != 1 {
			t.Errorf("%d checks were started", n)
		}
		close(hang)
		synctest.Wait()
		if err := h.status(); err != nil {
			t.Errorf("got %v after the disk came back", err)
		}
	})
}

// A pod that is created right after the daemon's start waits for the first check of the network. On
// a busy node, berth may need seconds to read the configuration.
func TestPodsWaitForTheFirstCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &health{
			check: func(context.Context) error { time.Sleep(3 * time.Second); return nil },
			ask:   func(context.Context) error { return nil },
		}
		test.Refused(t, h.status(), errdefs.IsUnavailable)
		test.Check(t, h.ready(t.Context()))
	})
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		h := &health{check: func(context.Context) error { <-hang; return nil }, ask: func(context.Context) error { return nil }}
		started := time.Now()
		if err := h.ready(t.Context()); !errdefs.IsUnavailable(err) || time.Since(started) < firstTimeout {
			t.Errorf("got %v after %v", err, time.Since(started))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		started = time.Now()
		if err := h.ready(ctx); !errdefs.IsUnavailable(err) || time.Since(started) > 2*time.Second {
			t.Errorf("got %v after %v for a caller with a timeout of a second", err, time.Since(started))
		}
		close(hang)
	})
}

func TestHealthAsksPlugins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		var repaired atomic.Bool
		down := errors.New("agent down")
		h := &health{
			check: func(context.Context) error { return nil },
			ask: func(ctx context.Context) error {
				asked.Add(1)
				time.Sleep(3 * time.Second)
				if repaired.Load() {
					return nil
				}
				return down
			},
		}
		started := time.Now()
		if err := h.status(); err != nil || time.Since(started) > checkWait {
			t.Errorf("got %v after %v: the first answer must not wait for plugins", err, time.Since(started))
		}
		time.Sleep(4 * time.Second)
		test.ErrorIs(t, h.status(), down, "the status after the plugins have failed")
		synctest.Wait()
		repaired.Store(true)
		time.Sleep(8 * time.Second) // a check of the plugins succeeds in this time
		_ = h.status()
		time.Sleep(4 * time.Second)
		if err := h.status(); err != nil {
			t.Errorf("got %v after the agent came back", err)
		}
		before := asked.Load()
		for range 20 {
			time.Sleep(time.Second)
			_ = h.status()
		}
		if n := asked.Load() - before; n > 1 {
			t.Errorf("asked %d times in twenty healthy seconds", n)
		}
		time.Sleep(askInterval)
	})
}

func TestStatusVerb(t *testing.T) {
	n := newNode(t)
	n.configure("10-new.conflist", `{"cniVersion": "1.1.0", "name": "new", "plugins": [{"type": "first"}]}`)
	n.spy("first", `[ "$CNI_COMMAND" = STATUS ] && { echo '{"code": 50, "msg": "no route to the agent"}'; exit 1; }`)
	p := New(n.config)
	checkError(t, p.askNode(t.Context()), errdefs.IsUnavailable, `network "new" is not ready`, "no route to the agent")
	n.spy("first", "")
	test.Check(t, p.askNode(t.Context()))
	n.configure("10-new.conflist", `{"cniVersion": "1.0.0", "name": "new", "plugins": [{"type": "missing-verb"}]}`)
	n.spy("missing-verb", "")
	if err := p.askNode(t.Context()); err != nil || n.commands("missing-verb") != "" {
		t.Errorf("%v, %s: plugins before 1.1 must not be asked", err, n.commands("missing-verb"))
	}
}
