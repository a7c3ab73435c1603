package lifecycle

import (
	"cmp"
	"context"
	"strings"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/lifecycle/statefile"
)

// rollouts implements rollout.Host.
type rollouts struct {
	*store
	controller *rollout.Controller
	file       statefile.ByHandler[*rollout.Decision]
}

func newRollouts(s *store, dir string) *rollouts {
	r := &rollouts{store: s, file: rollout.File(dir)}
	r.controller = rollout.New(r)
	return r
}

func (r *rollouts) View(name string) (rollout.View, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.truth.view(name), r.checkExistsLocked(name)
}

// Decide implements rollout.Host. A decision is stored on disk before it takes effect.
func (r *rollouts) Decide(ctx context.Context, name string, decide func(rollout.View) (*rollout.Decision, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.truth
	changed, err := r.apply(Change{}, func(t *truth) error {
		d, err := decide(t.view(name))
		if err != nil {
			return err
		}
		t.settle()
		t.decisions[name] = d
		return r.file.Write(t.decisions)
	})
	if err != nil {
		if again := r.file.Write(before.decisions); again != nil {
			log.G(ctx).WithError(again).WithField("handler", name).Error("Failed to roll back stored rollout decision")
		}
		return err
	}
	r.controller.Keep(r.truth.view)
	r.notify(changed, nil)
	was, is := before.view(name).Status(), r.truth.view(name).Status()
	r.audit(Change{
		Handler: name, What: "rollout", From: string(was.State), To: string(is.State), By: cmp.Or(userOf(ctx), byBerth),
		Reason: strings.TrimSuffix(is.Path+": "+is.Reason, ": "),
	})
	return nil
}

func (r *rollouts) Go(f func(ctx context.Context)) bool { return r.spawn(f) }

// settle drops the decisions on rollouts that no longer exist, and returns their handlers' names.
func (t *truth) settle() (dropped []string) {
	dropped = rollout.Outdated(t.decisions, t.view, len(t.config.Broken) > 0 || len(t.config.Problems) > 0)
	for _, name := range dropped {
		delete(t.decisions, name)
	}
	return dropped
}

// settle drops rollouts that no longer exist, also on disk; mu is held. If the write fails, the
// stored decision still applies only to the candidate it was made for.
func (r *rollouts) settle() {
	t := r.truth.copy()
	dropped := t.settle()
	r.controller.Keep(t.view)
	if len(dropped) == 0 {
		return
	}
	r.truth = t
	entry := log.G(r.life).WithField("handlers", dropped)
	if err := r.file.Write(t.decisions); err != nil {
		entry = entry.WithError(err)
	}
	entry.Info("Rollout changed or removed; discarding its previous decision")
}
