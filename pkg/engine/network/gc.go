package network

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sync/errgroup"
)

// Leftovers are pods that earlier runs of the daemon connected to the network, and that no longer
// have a record.
type Leftovers struct {
	p *Plugins
	// ids are the pods to disconnect.
	ids []string
	// valid are the pods that stay, in addition to those that this process connects.
	valid map[string]Pod
	// unread is an error of the search, because of which there may be more leftovers.
	unread error
}

// Leftovers finds the pods for which Setup began and that are not valid. It runs no plugin. Call it
// at the start of the daemon, before the first Setup, with every pod that has a record: otherwise
// it may return pods in use.
func (p *Plugins) Leftovers(valid ...Pod) *Leftovers {
	l := &Leftovers{p: p, valid: map[string]Pod{}}
	for _, pod := range valid {
		l.valid[pod.ID] = pod
	}
	journaled, err := p.journal.pods()
	for _, id := range journaled {
		if _, ok := l.valid[id]; !ok {
			l.ids = append(l.ids, id)
		}
	}
	l.unread = errors.Join(err, l.adopt())
	return l
}

// Has reports whether a pod is left over.
func (l *Leftovers) Has(id string) bool { return slices.Contains(l.ids, id) }

// adopt adds pods that only libcni's cache contains to the journal: a power failure may have lost
// their journal files.
func (l *Leftovers) adopt() error {
	cached, err := l.p.cni.GetCachedAttachments("")
	if err != nil {
		return err
	}
	entries := map[string]*journalEntry{}
	for _, a := range cached {
		id := a.ContainerID
		if _, ok := l.valid[id]; ok || l.Has(id) {
			continue
		}
		entries[id] = cmp.Or(entries[id], &journalEntry{ID: id, NetNS: a.NetNS})
		entries[id].Attachments = append(entries[id].Attachments, attachmentFrom(a))
	}
	var errs []error
	for id, entry := range entries {
		if err := l.p.journal.write(entry); err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", id, err))
			continue
		}
		l.ids = append(l.ids, id)
	}
	return errors.Join(errs...)
}

// Collect releases what the leftovers hold:
//
//   - each leftover gets a DEL, with the configuration of its ADD or, if that fails, the present
//     one, and is given up when DEL has failed for a day;
//   - if Config.GC is set, networks with CNI 1.1 and later get the verb GC, with the attachments
//     that stay, unless their configuration sets disableGC.
//
// Meanwhile, pods can be connected and disconnected. They wait only for the verb GC, as CNI
// requires, and no longer than verbTimeout for each network.
//
// CNI limits what Collect can do. Without the verb GC, plugins keep the address of a pod that is
// not in CacheDir. With it, they also release the addresses of other daemons' pods, because
// the verb covers the whole network.
func (l *Leftovers) Collect(ctx context.Context) error {
	failed := make([]error, len(l.ids))
	var g errgroup.Group
	g.SetLimit(collectParallel)
	for i, id := range l.ids {
		g.Go(func() error {
			if err := l.p.collect(ctx, id); err != nil {
				failed[i] = fmt.Errorf("sandbox %s: %w", id, err)
			}
			return nil
		})
	}
	_ = g.Wait()
	if err := errors.Join(l.unread, errors.Join(failed...), l.sendVerb(ctx)); err != nil {
		return bound(fmt.Errorf("network garbage collection: %w", err))
	}
	return nil
}

// collectParallel is the number of pods that are disconnected at a time: a plugin that hangs for
// one pod must not use up the time of the others.
const collectParallel = 4

func (p *Plugins) collect(ctx context.Context, id string) error {
	entry, err := p.journal.read(id)
	if err != nil {
		return err
	}
	if entry == nil { // damaged
		entry = &journalEntry{ID: id}
		if entry.Attachments, err = p.guess(ctx, Pod{ID: id}); err != nil {
			return err
		}
	}
	pod := Pod{ID: id, Name: entry.Name, Namespace: entry.Namespace, NetNS: entry.NetNS, CNIConfDir: entry.CNIConfDir}
	if err = p.delWithin(ctx, pod, entry.Attachments); err != nil {
		if plan := p.presentPlan(ctx, entry); plan != nil && p.delWithin(ctx, pod, plan) == nil {
			err = nil
		}
	}
	switch {
	case err == nil:
		p.forget(ctx, pod)
	case ctx.Err() == nil:
		return p.giveUp(ctx, pod, entry, err)
	}
	return err
}

// delWithin runs DEL with the time limit for one pod.
func (p *Plugins) delWithin(ctx context.Context, pod Pod, plan []Attachment) error {
	ctx, cancel := context.WithTimeout(ctx, p.undoTimeout)
	defer cancel()
	return p.delLocked(ctx, pod, plan)
}

// presentPlan returns the networks of a pod with their present configurations, because DEL may have
// failed due to the configuration of ADD. It returns nil if no configuration has changed.
func (p *Plugins) presentPlan(ctx context.Context, entry *journalEntry) []Attachment {
	lists, err := p.networks(ctx, entry.CNIConfDir)
	if err != nil {
		return nil
	}
	plan, changed := slices.Clone(entry.Attachments), false
	for i := range plan {
		for _, list := range lists {
			if list.Name == plan[i].Network && !bytes.Equal(list.Bytes, plan[i].Config) {
				plan[i].Config, changed = list.Bytes, true
			}
		}
	}
	if !changed {
		return nil
	}
	return plan
}

// giveUpAfter is the time after which a pod that cannot be disconnected is given up. A network
// daemon that was down at the start is running again by then.
const giveUpAfter = 24 * time.Hour

// giveUp gives up a pod that could not be disconnected for longer than giveUpAfter.
func (p *Plugins) giveUp(ctx context.Context, pod Pod, entry *journalEntry, cause error) error {
	switch {
	case entry.FailedSince.IsZero():
		entry.FailedSince = time.Now()
		return errors.Join(cause, p.journal.write(entry))
	case time.Since(entry.FailedSince) < giveUpAfter:
		return cause
	}
	log.G(ctx).WithError(cause).WithFields(log.Fields{
		"sandbox": pod.ID, "pod": pod.Namespace + "/" + pod.Name, "since": entry.FailedSince.Format(time.RFC3339),
	}).Warn("Giving up network teardown of removed pod; plugins may still hold its addresses")
	for i := range entry.Attachments {
		a := &entry.Attachments[i]
		cached := filepath.Join(p.config.CacheDir, "results", strings.Join([]string{a.Network, pod.ID, a.Interface}, "-"))
		if err := ignoreMissing(os.Remove(cached)); err != nil {
			return err
		}
	}
	p.forget(ctx, pod)
	return nil
}
