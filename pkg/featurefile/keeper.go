// Package featurefile publishes a node's handlers to Node Feature Discovery, in files that its
// worker reads, and keeps the files current.
//
// One file expires and is rewritten before that, so that a node without its daemon does not promise
// handlers forever. The other holds labels that must stay, because running pods select them. Close
// leaves both, so that a daemon's restart, as in an upgrade, changes no label. No file is written
// unless the directory exists: without it no worker reads files.
package featurefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/containerd/log"
)

const (
	// checkInterval is the time between checks whether the files are current and the directory
	// exists.
	checkInterval = 5 * time.Second
	// retry is the delay before a failed write is repeated.
	retry = 2 * time.Second
	// repeatDelay is the delay before a write is repeated that the worker may have missed: it
	// ignores events within a second of one that it handled.
	repeatDelay = 1500 * time.Millisecond
)

// Options configure a Keeper. All fields are required.
type Options struct {
	// Path is the file; its name must not begin with a dot. Lasting labels are in a second file
	// beside it, with the suffix "-present".
	Path string
	// Lifetime is the time from a write to its expiry. The file is rewritten after half of it.
	Lifetime time.Duration
	// Content returns the current content. The Keeper calls it often, in one goroutine.
	Content func() Content
}

// lastingSuffix is the suffix of the file of labels that do not expire.
const lastingSuffix = "-present"

// Keeper keeps the two files.
type Keeper struct {
	o    Options
	end  context.CancelFunc
	over chan struct{}

	// files and the fields below belong to the keeping goroutine.
	files []*kept
	wrote time.Time // last write; zero means unknown: an earlier Keeper may have written
	again time.Time // time of a repeated write; zero means never
	// earlier holds the facts of an earlier Keeper about unprobed handlers, until earlierUntil.
	earlier      Content
	earlierUntil time.Time
	begun        bool

	tally *tally
}

type kept struct {
	file
	lifetime time.Duration // zero means no expiry
	of       func(Content) Content
	reported string // the last failure, or empty
	left     int    // facts that did not fit, as last reported
}

// lasts reports whether the file outlives its daemon.
func (f *kept) lasts() bool { return f.lifetime == 0 }

// until returns the expiry time of content that is written now.
func (f *kept) until(c Content, now time.Time) time.Time {
	if f.lasts() {
		return time.Time{}
	}
	until := now.Add(f.lifetime)
	if !c.end.IsZero() && c.end.Before(until) {
		return c.end
	}
	return until
}

// New returns a Keeper that is not started.
func New(o Options) *Keeper {
	return &Keeper{o: o, end: func() {}, over: make(chan struct{}), tally: newTally(), files: []*kept{
		{file: file{o.Path + lastingSuffix}, of: Content.lasting},
		// A repeated write covers only this file, so it is written last.
		{file: file{o.Path}, lifetime: o.Lifetime, of: func(c Content) Content { return c }},
	}}
}

// Start keeps the files current from now on, and checks them again for each value from changes. It
// must be called once. The log is that of ctx; the end of ctx does not end the Keeper.
func Start[E any](ctx context.Context, k *Keeper, changes <-chan E) {
	ctx, k.end = context.WithCancel(context.WithoutCancel(ctx))
	go keep(ctx, k, changes)
}

func keep[E any](ctx context.Context, k *Keeper, changes <-chan E) {
	defer close(k.over)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changes:
			if !open {
				changes = nil
			}
		case <-timer.C:
		}
		timer.Reset(k.check(ctx))
	}
}

// closePatience is how long Close waits for an unresponsive file system.
const closePatience = 2 * time.Second

// Close stops the Keeper and leaves the files.
func (k *Keeper) Close(ctx context.Context) error {
	k.end()
	ctx, cancel := context.WithTimeout(ctx, closePatience)
	defer cancel()
	select {
	case <-k.over:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("writing %s timed out", k.o.Path)
	}
}

// check updates the files if needed, and returns the delay before the next check.
func (k *Keeper) check(ctx context.Context) time.Duration {
	now := time.Now()
	content := k.withEarlier(k.o.Content(), now)
	repeat := !k.again.IsZero() && !now.Before(k.again)
	written, unseen := 0, false
	var faults []error
	for _, f := range k.files {
		text, err := f.read()
		if errors.Is(err, errNoDirectory) {
			k.tally.reset()
			f.reported, k.again = "", time.Time{}
			return k.interval()
		}
		mine := f.of(content)
		if err == nil && (!repeat || f.lasts()) && !f.due(text, mine, now) {
			continue
		}
		seen, err := k.write(ctx, f, mine, now)
		if err != nil {
			faults = append(faults, k.failed(ctx, f, err, text, mine, now))
			continue
		}
		written++
		unseen = unseen || seen
	}
	k.tally.setFault(errors.Join(faults...))
	if written > 0 {
		k.again = time.Time{}
		if !repeat && (unseen || written > 1 || k.wrote.IsZero() || now.Sub(k.wrote) < repeatDelay) {
			k.again = now.Add(repeatDelay)
		}
		k.wrote = now
	}
	if len(faults) > 0 {
		return retry
	}
	if !k.again.IsZero() {
		return min(k.interval(), k.again.Sub(now))
	}
	return k.interval()
}

// withEarlier returns the content with an earlier Keeper's facts about unprobed handlers: a
// self-check pod may outlast the start of a daemon, which must not change labels. The expiry time
// of these facts is never extended, not even by the next Keeper.
func (k *Keeper) withEarlier(now Content, at time.Time) Content {
	if !k.begun {
		k.begun = true
		for _, f := range k.files {
			if text, err := f.read(); err == nil && !f.lasts() {
				k.earlier, k.earlierUntil = parse(text), expires(text)
			}
		}
	}
	// Once a handler is probed, its earlier facts are dropped for good.
	k.earlier = k.earlier.only(now.Unprobed)
	// The facts are dropped before they expire, because the whole file expires with them.
	if len(k.earlier.Labels)+len(k.earlier.Features) == 0 || !at.Before(k.earlierUntil.Add(-2*k.interval())) {
		return now
	}
	all := now.merge(k.earlier)
	all.end = k.earlierUntil
	return all
}

func (k *Keeper) interval() time.Duration { return min(checkInterval, k.o.Lifetime/4) }

// due reports whether the file must be rewritten. A lasting file is not created empty.
func (f *kept) due(text string, c Content, now time.Time) bool {
	if text == "" && f.lasts() && len(c.Labels) == 0 {
		return false
	}
	return due(text, c, f.lifetime, now)
}

// write also reports whether the worker may have read the directory before the write ended.
func (k *Keeper) write(ctx context.Context, f *kept, c Content, now time.Time) (seen bool, err error) {
	text, left := c.text(f.until(c, now))
	if seen, err = f.write(text); err != nil {
		return seen, err
	}
	k.tally.writes.WithLabelValues("ok").Inc()
	if f.reported != "" {
		f.reported = ""
		log.G(ctx).WithField("file", f.path).Info("Resumed writing node labels")
	}
	if left != f.left && left > 0 {
		log.G(ctx).WithFields(log.Fields{"file": f.path, "left": left}).
			Warn("Node labels do not fit into the file; omitting the last ones")
	}
	f.left = left
	return seen, nil
}

// failed retracts labels that are no longer true, if possible, and returns why the file is not
// current. Lasting labels stay: a superfluous one harms no pod.
func (k *Keeper) failed(ctx context.Context, f *kept, err error, text string, c Content, now time.Time) error {
	k.tally.writes.WithLabelValues("failed").Inc()
	if !f.lasts() && untrue(text, c) {
		fresh, _ := c.text(f.until(c, now))
		// A missing label is better than the label of a handler that takes no pods.
		if f.overwrite(fresh, len(text)) != nil {
			if removed := os.Remove(f.path); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
				err = errors.Join(err, removed)
			}
		}
	}
	if err.Error() != f.reported {
		f.reported = err.Error()
		log.G(ctx).WithError(err).WithField("file", f.path).
			Warn("Failed to write node labels; repair the directory, or set node_labels.file to another path or to \"\"")
	}
	return err
}
