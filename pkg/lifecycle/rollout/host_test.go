package rollout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
)

// TestMain keeps the log out of the output of a test that fails.
func TestMain(m *testing.M) {
	if err := log.SetLevel("panic"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}

// host is a Host in memory.
type host struct {
	mu       sync.Mutex
	views    map[string]View
	c        *Controller
	work     sync.WaitGroup
	refuse   error // the error of Decide
	stopping bool
}

func newHost() *host {
	h := &host{views: map[string]View{"runc": known()}}
	h.c = New(h)
	return h
}

// set replaces the View of runc, as a reload or a probe does.
func (h *host) set(v View) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.views["runc"] = v
	h.c.Keep(h.view)
}

func (h *host) view(name string) View { return h.views[name] }

func (h *host) View(name string) (View, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v, there := h.views[name]
	if !there {
		return View{}, errdefs.ErrNotFound
	}
	return v, nil
}

func (h *host) Decide(_ context.Context, name string, decide func(View) (*Decision, error)) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.views[name]
	d, err := decide(v)
	if err = errors.Join(err, h.refuse); err != nil {
		return err
	}
	v.Decision = d
	h.views[name] = v
	h.c.Keep(h.view)
	return nil
}

func (h *host) Go(f func(context.Context)) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.stopping {
		h.work.Go(func() { f(context.Background()) })
	}
	return !h.stopping
}

// status returns the status of runc's rollout, after all background work has finished.
func (h *host) status() *Status {
	h.work.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.views["runc"].Status()
}

// definition returns a Definition with a candidate.
func definition() *handler.Definition {
	return &handler.Definition{
		Name: "runc", Type: handler.OCI, Path: "/old",
		Candidate: &handler.Candidate{Path: "/new", Percent: 10},
	}
}

// known returns the View of a running rollout.
func known() View {
	return View{Definition: definition(), Probed: Probed{Known: true, SHA256: "a"}}
}

// candidate returns a pod on the candidate binary with this checksum.
func candidate(sha256, pod string) handler.Attempt {
	return handler.Attempt{Definition: definition().WithCandidate(), SHA256: sha256, Pod: pod}
}

// stable returns a pod on the handler's own binary.
func stable(pod string) handler.Attempt {
	return handler.Attempt{Definition: definition(), Pod: pod}
}
