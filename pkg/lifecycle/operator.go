package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/probe"
)

// Cordon rejects new pods of a handler until Uncordon. It is stored on disk before it takes effect,
// and survives restarts. Existing pods are still served. by is the user that requests it.
func (m *Manager) Cordon(ctx context.Context, name, reason, by string) error {
	return m.intend(ctx, name, &Intent{Kind: Cordon, Reason: reason, By: by})
}

// Drain is Cordon for a handler that is to be emptied: berth stops no pods, they exit or are
// evicted. See Handler.Pods.
func (m *Manager) Drain(ctx context.Context, name, reason, by string) error {
	return m.intend(ctx, name, &Intent{Kind: Drain, Reason: reason, By: by})
}

// Uncordon removes a Cordon or Drain. Without either it does nothing.
func (m *Manager) Uncordon(ctx context.Context, name string) error {
	return m.intend(ctx, name, nil)
}

// intend stores an intent, or removes it if i is nil.
func (m *Manager) intend(ctx context.Context, name string, i *Intent) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i != nil || m.truth.intents[name] == nil {
		if err := m.checkExistsLocked(name); err != nil || i == nil { // no intent to remove
			return err
		}
	}
	if i != nil {
		if len(i.Reason) > maxReason {
			return fmt.Errorf("the reason has %d bytes; the limit is %d: %w", len(i.Reason), maxReason, errdefs.ErrInvalidArgument)
		}
		i.Reason, i.Since = strings.Join(strings.Fields(i.Reason), " "), time.Now()
	}
	wish := Change{Handler: name, What: "uncordon", By: userOf(ctx)}
	if i != nil {
		wish.What, wish.By = string(i.Kind), i.By
	}
	before := m.truth
	changed, err := m.apply(wish, func(t *truth) error {
		delete(t.intents, name)
		if i != nil {
			t.intents[name] = i
		}
		if err := m.intents.Write(t.intents); err != nil {
			return fmt.Errorf("store the cordon or drain of handler %q: %w", name, err)
		}
		return nil
	})
	if err != nil {
		if again := m.intents.Write(before.intents); again != nil {
			log.G(ctx).WithError(again).WithField("handler", name).Error("Failed to roll back stored handler intent")
		}
		return err
	}
	m.notify(changed, nil)
	return nil
}

// Probe probes one handler now, at depth probe.Ask or deeper, and returns its new state. It waits
// for the probe, including a self-check pod, until ctx ends: then it returns an error and the probe
// continues. A handler that cannot run pods is not an error: see the Handler's State.
func (m *Manager) Probe(ctx context.Context, name string, depth probe.Depth) (Handler, error) {
	if err := m.checkExists(name); err != nil {
		return Handler{}, err
	}
	if !m.begin() {
		return Handler{}, errClosed
	}
	defer m.work.Done()
	configured := m.snapshot().config
	if d := definitions(configured)[name]; d != nil {
		if depth == probe.WithSelfCheck && d.Type == handler.CRI {
			return Handler{}, fmt.Errorf("handler %q belongs to another daemon, where no self-check pod can run; probe it without one: %w", name, errdefs.ErrFailedPrecondition)
		}
		m.probes.probeAll(ctx, rollout.Definitions(d), max(depth, probe.Ask), unbounded)
		if same := sameAs(d, configured.Runtimes); len(same) > 0 {
			m.probes.probeAll(ctx, same, probe.Ask, unbounded)
		}
		if err := context.Cause(ctx); err != nil {
			return Handler{}, fmt.Errorf("the probe of handler %q is still running: %w", name, err)
		}
		if err := m.change(func(*truth) error { return nil }); err != nil {
			return Handler{}, err
		}
	}
	return m.Handler(name)
}

// sameAs returns the Definitions of the handler's other names (alias_of), with candidates. Pure.
func sameAs(d *handler.Definition, all []*handler.Definition) []*handler.Definition {
	var same []*handler.Definition
	for _, o := range all {
		if o.Name != d.Name && cmp.Or(o.AliasOf, o.Name) == cmp.Or(d.AliasOf, d.Name) {
			same = append(same, rollout.Definitions(o)...)
		}
	}
	return same
}
