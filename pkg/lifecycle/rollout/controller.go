// Package rollout controls candidate binaries: which pods get a handler's candidate, when too many
// of them fail, and what promote and abort do.
//
// The pure methods of a View make the decisions. The Host, which package lifecycle implements,
// holds the state and applies Decisions.
package rollout

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
)

// maxReason bounds a Decision's reason, in bytes: clients of the CRI read it.
const maxReason = 256

// Host holds the state of rollouts and routes pods by it. Its methods may be called from any
// goroutine.
type Host interface {
	// View returns the View of a handler's rollout. The error is of the class ErrNotFound.
	View(name string) (View, error)
	// Decide passes the current View to decide, then stores and applies its Decision: both or
	// neither. Then it calls Keep.
	Decide(ctx context.Context, name string, decide func(View) (*Decision, error)) error
	// Go runs f in the background with a ctx that ends with the daemon. While the daemon is
	// stopping, it returns false and does not run f.
	Go(f func(ctx context.Context)) bool
}

// Controller ends rollouts: on an operator's request, or when too many pods fail.
type Controller struct {
	host    Host
	tallies tallies
}

// New returns the Controller for all rollouts of a Host.
func New(h Host) *Controller {
	return &Controller{host: h, tallies: tallies{running: map[string]*tally{}}}
}

// Keep drops the tallies of rollouts that are over. view is also called for handlers that are not
// configured.
func (c *Controller) Keep(view func(name string) View) { c.tallies.keep(view) }

// Began implements router.Outcomes.
func (c *Controller) Began(name string, a handler.Attempt) { c.count(name, a, false) }

// Failed implements router.Outcomes. It aborts the rollout if too many of its pods fail.
func (c *Controller) Failed(name string, a handler.Attempt, err error) {
	one, next := c.count(name, a, true)
	if one == nil || a.Definition.Binary != handler.BinaryCandidate {
		return
	}
	c.tallies.mu.Lock()
	of, begun, failed := one.key, len(one.candidate.begun), len(one.candidate.failed)
	abort := !one.over && one.exceeds()
	one.over = one.over || abort
	c.tallies.mu.Unlock()
	if !abort {
		return
	}
	reason := printable.Clip(strings.ToValidUTF8(fmt.Sprintf("%d of %d pods on the candidate failed to start within %v; last error: %v", failed, begun, window, err), ""), maxReason)
	c.host.Go(func(ctx context.Context) {
		if err := c.end(ctx, name, end{state: Aborted, reason: reason, on: *next, of: &of}); err != nil {
			log.G(ctx).WithError(err).WithField("handler", name).Error("Failed to abort rollout over its failure threshold")
			c.tallies.mu.Lock()
			one.over = false
			c.tallies.mu.Unlock()
		}
	})
}

// count adds a pod to the tally of its handler's rollout. It returns nil if there is no undecided
// rollout, or if the pod belongs to another one.
func (c *Controller) count(name string, a handler.Attempt, failed bool) (*tally, *handler.Candidate) {
	v, err := c.host.View(name)
	if err != nil || a.Definition == nil || !v.open() {
		return nil, nil
	}
	k := v.key()
	candidate := a.Definition.Binary == handler.BinaryCandidate
	if candidate && (a.Definition.Digest() != k.digest || !mayBe(a.SHA256, k.sha256)) {
		return nil, nil
	}
	c.tallies.mu.Lock()
	defer c.tallies.mu.Unlock()
	now := time.Now()
	one := c.tallies.of(name, k, now)
	if candidate {
		one.candidate.add(a.Pod, failed, now)
	} else {
		one.stable.add(a.Pod, failed, now)
	}
	return one, v.Definition.Candidate
}

// Promote makes the candidate the binary of all the handler's new pods, until candidate is changed
// in or removed from the configuration, or its program changes. The candidate's path should become
// the handler's runtime_path before that. Promote survives restarts. Existing pods keep their
// binary.
func (c *Controller) Promote(ctx context.Context, name string) error {
	return c.operate(ctx, name, Promoted, "promoted by an operator")
}

// Abort ends the rollout of a handler's candidate: no new pods get it until candidate is changed in
// the configuration, or its program changes. It also undoes Promote, and survives restarts.
func (c *Controller) Abort(ctx context.Context, name, reason string) error {
	if len(reason) > maxReason {
		return fmt.Errorf("the reason has %d bytes; the limit is %d: %w", len(reason), maxReason, errdefs.ErrInvalidArgument)
	}
	return c.operate(ctx, name, Aborted, strings.Join(strings.Fields(reason), " "))
}

func (c *Controller) operate(ctx context.Context, name string, state State, reason string) error {
	v, err := c.host.View(name)
	if err != nil {
		return err
	}
	if err := v.decidable(name); err != nil {
		return err
	}
	return c.end(ctx, name, end{state: state, reason: reason, on: *v.Definition.Candidate})
}

func (c *Controller) end(ctx context.Context, name string, e end) error {
	return c.host.Decide(ctx, name, func(v View) (*Decision, error) { return v.decide(name, e, time.Now()) })
}
