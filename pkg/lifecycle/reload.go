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

// reloader puts in force what the configuration files say, one reload at a time. Its fields
// live as long as the Manager. What a reload swaps is the truth and the plan of the store,
// both or neither.
type reloader struct {
	*store
	rollouts *rollouts
	probes   *probes

	loader    Loader
	announcer Announcer // may be nil
	// requests has no room: what is sent during a reload is received after it, and shares the
	// next one.
	requests chan request
	// rewatch has room for one: the loader's paths may be others.
	rewatch chan struct{}
	// polls says that changes of files are not told by the kernel.
	polls atomic.Bool
}

func newReloader(r *rollouts, p *probes, o Options) *reloader {
	return &reloader{
		store: r.store, rollouts: r, probes: p, loader: o.Loader, announcer: o.Announcer,
		requests: make(chan request), rewatch: make(chan struct{}, 1),
	}
}

// request is one wish for a reload.
type request struct {
	trigger Trigger
	// by is the user behind the request, or empty.
	by string
	// patient requests are tried once more, when files are quiet, before a
	// failure is reported: an editor may be in the middle of something.
	patient bool
	// silent requests are of no interest unless something changes.
	silent bool
	// done get the outcome; they are buffered.
	done []chan Outcome
}

// with is the request that stands for two. Pure.
func (q request) with(o request) request {
	if slices.Index(triggers, o.trigger) > slices.Index(triggers, q.trigger) {
		q.trigger = o.trigger
	}
	q.by = cmp.Or(q.by, o.by)
	q.patient, q.silent = q.patient && o.patient, q.silent && o.silent
	q.done = append(q.done, o.done...)
	return q
}

// request asks for a reload and does not wait for it. It returns false if the Manager is closed.
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

// merged is q together with all other requests of the moment.
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
		// All of them: what was missing may be there by now, and one that has not
		// changed costs a few stats.
		r.probes.probeAll(ctx, Candidates(next), probe.Look, probeWait)
		if err = r.put(next, &o, q); err == nil {
			r.loader.InForce(ctx, next)
		}
	}
	switch {
	case err != nil && q.silent && r.aware(err):
		return o
	case err != nil:
		r.failed(&o, err, q.by)
	}
	r.report(ctx, o, q)
	select {
	case r.rewatch <- struct{}{}:
	default: // it will be looked at anyway
	}
	return o
}

// put makes a loaded configuration the one in force. A silent reload that
// changes nothing has not happened, unless the one before it failed: what is wrong
// with the files is told until they are right.
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
			r.tell(changed, nil)
		}
		return nil
	}
	r.problems = next.Problems.Lines()
	o.NotReady = r.plan.notReady()
	r.done(o, changed)
	r.history.reloaded(o, before.Generation, q.by, definitionsBefore, definitions(r.truth.config))
	return nil
}

// done notes a reload that is over, and tells watchers; mu is held.
func (r *reloader) done(o *Outcome, changed []string) {
	o.Generation, o.Digest, o.Took = r.plan.Generation, r.plan.Digest, time.Since(o.At)
	last := *o
	r.last = &last
	r.counts.reloaded(o)
	r.tell(changed, r.last)
}

// aware says whether an error is what the last reload failed with.
func (r *reloader) aware(err error) bool {
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

// settle is how long files are left alone before a failed reading is repeated.
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
