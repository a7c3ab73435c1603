// Package featurefile tells Node Feature Discovery of a node's handlers, in a file
// that its worker reads, and keeps that file true:
//
//	keeper := featurefile.New(featurefile.Options{Path: path, Lifetime: 5 * time.Minute, Content: now})
//	featurefile.Start(ctx, keeper, changes)
//	defer keeper.Close(ctx)
//
// The file says until when it counts, and is written again before that, so that a
// node whose daemon is gone does not promise handlers for ever. Close leaves it: a
// daemon that comes back soon, as in an upgrade, changes no label meanwhile. There is
// no file where there is no directory for it, which is where nobody reads it.
package featurefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/containerd/log"
)

const (
	// glance is how often is looked whether the file is still true, and whether there
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
	// Path is the file. Its name does not begin with a dot.
	Path string
	// Lifetime is for how long what is written counts. It is written again when half of
	// that is over.
	Lifetime time.Duration
	// Content is what is true at the moment. It is called by one goroutine, often.
	Content func() Content
}

// Keeper keeps one file.
type Keeper struct {
	o    Options
	end  context.CancelFunc
	over chan struct{}
	file file

	// The rest is the keeping goroutine's own.
	reported string    // the last failure, or empty
	left     int       // facts that had no room, as last reported
	wrote    time.Time // when the file was last written; zero is not known, for an earlier Keeper may have
	again    time.Time // when that is to be repeated; zero is never

	tally tally
}

// New makes a Keeper that keeps nothing yet.
func New(o Options) *Keeper {
	return &Keeper{o: o, end: func() {}, over: make(chan struct{}), file: file{o.Path}}
}

// Start has k keep the file from now on, and look at it again with everything that comes
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

// Fault says why the file is not true, or is nil.
func (k *Keeper) Fault() error { return k.tally.fault() }

// closePatience is how long Close waits for a file system that does not answer.
const closePatience = 2 * time.Second

// Close ends the keeping. The file stays as it is.
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

// look makes the file true if it is not, and returns when to look again.
func (k *Keeper) look(ctx context.Context) time.Duration {
	soon := min(glance, k.o.Lifetime/4)
	content, now := k.o.Content(), time.Now()
	text, err := k.file.read()
	if errors.Is(err, errNoDirectory) {
		k.tally.unwanted()
		k.reported, k.again = "", time.Time{}
		return soon
	}
	repeat := !k.again.IsZero() && !now.Before(k.again)
	if err != nil || repeat || due(text, content, k.o.Lifetime, now) {
		seen, err := k.write(ctx, content, now)
		if err != nil {
			k.failed(ctx, err, text, content, now)
			return retry
		}
		k.again = time.Time{}
		if !repeat && (seen || k.wrote.IsZero() || now.Sub(k.wrote) < settled) {
			k.again = now.Add(settled)
		}
		k.wrote = now
	}
	k.tally.is(nil)
	if !k.again.IsZero() {
		soon = min(soon, k.again.Sub(now))
	}
	return soon
}

// write also says whether the worker may have looked before it was over.
func (k *Keeper) write(ctx context.Context, content Content, now time.Time) (seen bool, err error) {
	text, left := content.text(now.Add(k.o.Lifetime))
	if seen, err = k.file.write(text); err != nil {
		return seen, err
	}
	k.tally.wrote(true)
	if k.reported != "" {
		k.reported = ""
		log.G(ctx).WithField("file", k.o.Path).Info("Resumed writing node labels")
	}
	if left != k.left && left > 0 {
		log.G(ctx).WithFields(log.Fields{"file": k.o.Path, "left": left}).
			Warn("Node labels do not fit into the file; omitting the last ones")
	}
	k.left = left
	return seen, nil
}

// failed takes back what is not true any more, if that can be done.
func (k *Keeper) failed(ctx context.Context, err error, text string, content Content, now time.Time) {
	k.tally.wrote(false)
	if untrue(text, content) {
		fresh, _ := content.text(now.Add(k.o.Lifetime))
		// It is better that no handler has a label than that one has which takes no pods.
		if k.file.overwrite(fresh, len(text)) != nil {
			if removed := k.file.remove(); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
				err = errors.Join(err, removed)
			}
		}
	}
	k.tally.is(err)
	if err.Error() == k.reported {
		return
	}
	k.reported = err.Error()
	log.G(ctx).WithError(err).WithField("file", k.o.Path).
		Warn("Failed to write node labels; repair the directory, or set node_labels.file to another path or to \"\"")
}
