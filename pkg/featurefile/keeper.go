// Package featurefile tells Node Feature Discovery of a node's handlers, in files that
// its worker reads, and keeps them true.
//
// One file says until when it counts, and is written again before that, so that a
// node whose daemon is gone does not promise handlers for ever. The other has what must
// stay, for pods that run select it. Close leaves both: a daemon that comes back soon, as
// in an upgrade, changes no label meanwhile. There is no file where there is no directory
// for it, which is where nobody reads it.
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
	// glance is how often is looked whether the files are still true, and whether there
	// is a directory by now.
	glance = 5 * time.Second
	// retry is how soon a write that failed is tried again.
	retry = 2 * time.Second
	// settled is how soon a write is repeated that may have gone unseen: the worker
	// passes over what happens within a second of something that it looked at.
	settled = 1500 * time.Millisecond
)

// Options are what a Keeper needs. All are required.
type Options struct {
	// Path is the file. Its name does not begin with a dot. What lasts is in a second one
	// beside it, with "-present" behind its name.
	Path string
	// Lifetime is for how long what is written counts. It is written again when half of
	// that is over.
	Lifetime time.Duration
	// Content is what is true at the moment. It is called by one goroutine, often.
	Content func() Content
}

// lastingSuffix makes the name of the file whose labels count for ever.
const lastingSuffix = "-present"

// Keeper keeps the two files.
type Keeper struct {
	o    Options
	end  context.CancelFunc
	over chan struct{}

	// The rest is the keeping goroutine's own.
	files []*kept
	wrote time.Time // when a file was last written; zero is not known, for an earlier Keeper may have
	again time.Time // when that is to be repeated; zero is never
	// earlier is what an earlier Keeper said of handlers of which nothing is known yet.
	earlier      Content
	earlierUntil time.Time
	begun        bool

	tally *tally
}

type kept struct {
	file
	lifetime time.Duration // zero has no end
	of       func(Content) Content
	reported string // the last failure, or empty
	left     int    // facts that had no room, as last reported
}

// lasts says that the file outlives its daemon.
func (f *kept) lasts() bool { return f.lifetime == 0 }

// until is when content that is written now stops to count.
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

// New makes a Keeper that keeps nothing yet.
func New(o Options) *Keeper {
	return &Keeper{o: o, end: func() {}, over: make(chan struct{}), tally: newTally(), files: []*kept{
		{file: file{o.Path + lastingSuffix}, of: Content.lasting},
		// The last, so that it is the one which is written again.
		{file: file{o.Path}, lifetime: o.Lifetime, of: func(c Content) Content { return c }},
	}}
}

// Start has k keep the files from now on, and look at it again with everything that comes
// out of changes. It is called once. The log of ctx is the Keeper's; its end is not.
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
		timer.Reset(k.look(ctx))
	}
}

// closePatience is how long Close waits for a file system that does not answer.
const closePatience = 2 * time.Second

// Close ends the keeping. The files stay as they are.
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

// look makes the files true if they are not, and returns when to look again.
func (k *Keeper) look(ctx context.Context) time.Duration {
	now := time.Now()
	content := k.keep(k.o.Content(), now)
	repeat := !k.again.IsZero() && !now.Before(k.again)
	written, unseen := 0, false
	var faults []error
	for _, f := range k.files {
		text, err := f.read()
		if errors.Is(err, errNoDirectory) {
			k.tally.unwanted()
			f.reported, k.again = "", time.Time{}
			return k.soon()
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
	k.tally.is(errors.Join(faults...))
	if written > 0 {
		k.again = time.Time{}
		if !repeat && (unseen || written > 1 || k.wrote.IsZero() || now.Sub(k.wrote) < settled) {
			k.again = now.Add(settled)
		}
		k.wrote = now
	}
	if len(faults) > 0 {
		return retry
	}
	if !k.again.IsZero() {
		return min(k.soon(), k.again.Sub(now))
	}
	return k.soon()
}

// keep is the content with what an earlier Keeper said of handlers of which nothing is known
// yet: a self-check pod may take longer than the start of a daemon, which changes no label.
// It counts no longer than the earlier Keeper said, also for the next one.
func (k *Keeper) keep(now Content, at time.Time) Content {
	if !k.begun {
		k.begun = true
		for _, f := range k.files {
			if text, err := f.read(); err == nil && !f.lasts() {
				k.earlier, k.earlierUntil = parse(text), expires(text)
			}
		}
	}
	// A handler of which something was known once is not among them any more.
	k.earlier = k.earlier.about(now.Undecided)
	// The file ends with it, and is written anew before that: what is true now goes on.
	if len(k.earlier.Labels)+len(k.earlier.Features) == 0 || !at.Before(k.earlierUntil.Add(-2*k.soon())) {
		return now
	}
	all := now.keeping(k.earlier)
	all.end = k.earlierUntil
	return all
}

func (k *Keeper) soon() time.Duration { return min(glance, k.o.Lifetime/4) }

// due says whether the file has to be written. One that lasts is not begun with nothing.
func (f *kept) due(text string, c Content, now time.Time) bool {
	if text == "" && f.lasts() && len(c.Labels) == 0 {
		return false
	}
	return due(text, c, f.lifetime, now)
}

// write also says whether the worker may have looked before it was over.
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

// failed takes back what is not true any more, if that can be done, and returns why the
// file is not true. What lasts stays: a label too many keeps no pod from living.
func (k *Keeper) failed(ctx context.Context, f *kept, err error, text string, c Content, now time.Time) error {
	k.tally.writes.WithLabelValues("failed").Inc()
	if !f.lasts() && untrue(text, c) {
		fresh, _ := c.text(f.until(c, now))
		// It is better that no handler has a label than that one has which takes no pods.
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
