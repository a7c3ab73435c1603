package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/probe"
)

// reloader applies the configuration files, one reload at a time. Its fields live as long as the
// Manager. A reload swaps the truth and the plan of the store: both or neither.
type reloader struct {
	*store
	rollouts *rollouts
	probes   *probes

	loader    Loader
	announcer Announcer // may be nil
	// requests is unbuffered: requests sent during a reload are received after it and share the
	// next one.
	requests chan request
	// rewatch signals that the loader's paths may have changed; it buffers one signal.
	rewatch chan struct{}
	// polls is set while the kernel does not report all changes of files.
	polls atomic.Bool
}

func newReloader(r *rollouts, p *probes, o Options) *reloader {
	return &reloader{
		store: r.store, rollouts: r, probes: p, loader: o.Loader, announcer: o.Announcer,
		requests: make(chan request), rewatch: make(chan struct{}, 1),
	}
}

// request is one request for a reload.
type request struct {
	trigger Trigger
	// by is the user behind the request, or empty.
	by string
	// patient requests are retried once, after settle, before a failure is reported: an editor may
	// still be writing.
	patient bool
	// silent requests are reported only if something changed, or an error is new or gone.
	silent bool
	// done channels receive the outcome; they are buffered.
	done []chan Outcome
}

// with merges two requests into one. Pure.
func (q request) with(o request) request {
	if slices.Index(triggers, o.trigger) > slices.Index(triggers, q.trigger) {
		q.trigger = o.trigger
	}
	q.by = cmp.Or(q.by, o.by)
	q.patient, q.silent = q.patient && o.patient, q.silent && o.silent
	q.done = append(q.done, o.done...)
	return q
}

// request requests a reload without waiting for it. It returns false if the Manager is closed.
func (r *reloader) request(q request) bool {
	return r.spawn(func(ctx context.Context) {
		select {
		case r.requests <- q:
		case <-ctx.Done():
		}
	})
}

func (r *reloader) run() {
	for {
		select {
		case <-r.life.Done():
			return
		case q := <-r.requests:
			q = r.merged(q)
			o := r.reload(r.life, q)
			for _, done := range q.done {
				done <- o
			}
		}
	}
}

// merged returns q together with all requests that are waiting.
func (r *reloader) merged(q request) request {
	for {
		select {
		case o := <-r.requests:
			q = q.with(o)
		default:
			return q
		}
	}
}

func (r *reloader) reload(ctx context.Context, q request) Outcome {
	o := Outcome{Trigger: q.trigger, At: time.Now()}
	if a := r.announcer; a != nil {
		if !q.silent {
			a.Reloading(ctx)
		}
		before := r.Current().Last
		defer func() {
			if !q.silent || r.Current().Last != before {
				a.Reloaded(ctx, r.Current(), r.handlers())
			}
		}()
	}
	next, err := r.loader.Load(ctx)
	if err != nil && q.patient {
		r.later(request{trigger: q.trigger, silent: q.silent})
		return o
	}
	if err == nil {
		// All handlers are probed: a missing binary may exist by now, and an unchanged handler
		// costs a few stats.
		r.probes.probeAll(ctx, Candidates(next), probe.Look, probeWait)
		if err = r.put(next, &o, q); err == nil {
			r.loader.InForce(ctx, next)
		}
	}
	switch {
	case err != nil && q.silent && r.reported(err):
		return o
	case err != nil:
		r.failed(&o, err, q.by)
	}
	r.report(ctx, o, q)
	select {
	case r.rewatch <- struct{}{}:
	default: // a signal is already buffered
	}
	return o
}

// put applies a loaded configuration. A silent reload without changes is not recorded, unless the
// previous reload failed: its mistakes must no longer be reported.
func (r *reloader) put(next *config.Config, o *Outcome, q request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, definitionsBefore := r.plan, definitions(r.truth.config)
	effective, diff := config.Reload(r.truth.config, next)
	o.Diff = diff
	changed, err := r.apply(Change{}, func(t *truth) error {
		t.adopt(effective)
		t.loaded, t.trigger, t.pending = o.At, o.Trigger, diff.Pending
		return nil
	})
	if err != nil {
		return err
	}
	r.rollouts.settle()
	failed := r.last != nil && r.last.Error != nil
	if o.Changed = r.plan != before; q.silent && !o.Changed && !failed && len(diff.Live) == 0 {
		o.Generation = r.plan.Generation
		if len(changed) > 0 {
			r.notify(changed, nil)
		}
		return nil
	}
	r.problems = next.Problems.Lines()
	o.NotReady = r.plan.notReady()
	r.done(o, changed)
	r.history.reloaded(o, before.Generation, q.by, definitionsBefore, definitions(r.truth.config))
	return nil
}

// done records a finished reload and notifies watchers; mu is held.
func (r *reloader) done(o *Outcome, changed []string) {
	o.Generation, o.Digest, o.Took = r.plan.Generation, r.plan.Digest, time.Since(o.At)
	last := *o
	r.last = &last
	r.counts.reloaded(o)
	r.notify(changed, r.last)
}

// reported reports whether the last reload failed with this error.
func (r *reloader) reported(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last != nil && slices.Equal(r.last.Problems, lines(err))
}

func (r *reloader) failed(o *Outcome, err error, by string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*o = Outcome{Trigger: o.Trigger, At: o.At, Error: err, Problems: lines(err)}
	r.done(o, nil)
	r.history.reloaded(o, r.plan.Generation, by, nil, nil)
}

func lines(err error) []string {
	var problems config.Problems
	if errors.As(err, &problems) {
		return problems.Lines()
	}
	return []string{err.Error()}
}

// settle is the delay before a failed read is repeated.
const settle = 500 * time.Millisecond

func (r *reloader) later(q request) {
	r.spawn(func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(settle):
			r.request(q)
		}
	})
}

func (r *reloader) report(ctx context.Context, o Outcome, q request) {
	entry := log.G(ctx).WithFields(log.Fields{"trigger": o.Trigger, "by": cmp.Or(q.by, string(o.Trigger)), "generation": o.Generation})
	for _, c := range o.Diff.Pending {
		entry.WithField("key", c.String()).Warn("Changed setting takes effect only after a restart of berth")
	}
	switch {
	case o.Error != nil:
		for _, p := range o.Problems {
			entry.WithField("problem", p).Error("Configuration rejected; the last accepted one stays in use")
		}
	case !o.Changed && (q.silent || o.Trigger == TriggerFiles) && len(o.Diff.Live) == 0:
		entry.Debug("Configuration reloaded without changes")
	default:
		entry.WithFields(log.Fields{
			"added": o.Diff.Added, "changed": o.Diff.Changed, "removed": o.Diff.Removed, "default": o.Diff.DefaultTo,
			"live": o.Diff.Live, "not_ready": o.NotReady, "took": o.Took.Round(time.Millisecond).String(),
		}).Info("Configuration reloaded")
	}
}
