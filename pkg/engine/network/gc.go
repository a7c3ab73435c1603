package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

// GC disconnects every pod that is not valid, and gives back what nobody owns:
//
//   - pods that Setup began with and nobody knows any more get their DEL, by the
//     present configuration if that of ADD does not work, and are given up when
//     it has failed for a day;
//   - configurations of CNI 1.1 and later get the verb GC, with the attachments
//     that are to stay, unless they say disableGC.
//
// Pods that this process connected itself are spared in any case, so valid may
// be a little old. GC is for the start of the daemon: while pods are being
// connected it does nothing and returns errdefs.ErrUnavailable.
//
// Its limits are CNI's. A plugin before 1.1 keeps an address whose pod left no
// trace here. And the verb speaks for the whole network: a network that another
// daemon on the node uses under the same name must say disableGC, or the pods
// of that daemon lose what they hold.
func (p *Plugins) GC(ctx context.Context, valid ...Pod) error {
	if !p.running.TryLock() {
		return errdefs.ErrUnavailable.WithMessage("network garbage collection: pods are being connected, try again later")
	}
	defer p.running.Unlock()
	keep := p.spared(valid)
	err := errors.Join(p.collectJournal(ctx, keep), p.collectNetworks(ctx, keep))
	if err != nil {
		return bound(fmt.Errorf("network garbage collection: %w", err))
	}
	return nil
}

// spared are the valid pods and the young ones, by id.
func (p *Plugins) spared(valid []Pod) map[string]Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	keep := make(map[string]Pod, len(valid)+len(p.young))
	for _, pods := range []map[string]Pod{byID(valid), p.young} {
		for id, pod := range pods {
			keep[id] = pod
		}
	}
	return keep
}

func byID(pods []Pod) map[string]Pod {
	out := make(map[string]Pod, len(pods))
	for _, pod := range pods {
		out[pod.ID] = pod
	}
	return out
}

// collectJournal runs DEL for the pods of the journal that are not kept.
func (p *Plugins) collectJournal(ctx context.Context, keep map[string]Pod) error {
	ids, err := p.journaled()
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range ids {
		if _, ok := keep[id]; ok {
			continue
		}
		if err := p.collect(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

func (p *Plugins) collect(ctx context.Context, id string) error {
	entry, err := p.readJournal(id)
	if err != nil || entry == nil {
		return err
	}
	pod := Pod{ID: id, Name: entry.Name, Namespace: entry.Namespace, NetNS: entry.NetNS, CNIConfDir: entry.CNIConfDir}
	err = p.del(ctx, pod, entry.Attachments)
	if err != nil && p.del(ctx, pod, p.mended(ctx, entry)) == nil {
		err = nil
	}
	if err != nil && ctx.Err() == nil {
		return p.lose(ctx, pod, entry, err)
	}
	if err == nil {
		p.forget(ctx, pod)
	}
	return err
}

// mended is what a pod was connected to, by the present configurations of those
// networks: that of ADD may be what was wrong.
func (p *Plugins) mended(ctx context.Context, entry *journalEntry) []Attachment {
	plan := slices.Clone(entry.Attachments)
	lists, err := p.directory(entry.CNIConfDir).networks(ctx)
	if err != nil {
		return plan
	}
	for i := range plan {
		for _, list := range lists {
			if list.Name == plan[i].Network {
				plan[i].Config = list.Bytes
			}
		}
	}
	return plan
}

// hopeless is for how long a pod that cannot be disconnected is tried again. A
// network's own daemon that is down when ours starts is back by then; what is
// wrong for longer stays wrong.
const hopeless = 24 * time.Hour

// lose gives a pod up that could not be disconnected for long.
func (p *Plugins) lose(ctx context.Context, pod Pod, entry *journalEntry, cause error) error {
	switch {
	case entry.FailedSince.IsZero():
		entry.FailedSince = time.Now()
		return errors.Join(cause, p.writeEntry(entry))
	case time.Since(entry.FailedSince) < hopeless:
		return cause
	}
	log.G(ctx).WithError(cause).WithFields(log.Fields{
		"sandbox": pod.ID, "pod": pod.Namespace + "/" + pod.Name, "since": entry.FailedSince.Format(time.RFC3339),
	}).Warn("network of a pod that is gone is given up: plugins may hold addresses for it")
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

// collectNetworks sends the verb to each network once.
func (p *Plugins) collectNetworks(ctx context.Context, keep map[string]Pod) error {
	lists, err := p.configured(ctx, keep)
	if err != nil {
		return err
	}
	args := &libcni.GCArgs{ValidAttachments: p.valid(keep)}
	var errs []error
	for name, list := range lists {
		if err := p.cni.GCNetworkList(ctx, list, args); err != nil {
			errs = append(errs, fmt.Errorf("network %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// configured are the networks of the node and of the pods' handlers, by name. A
// directory without any configuration has nothing to collect.
func (p *Plugins) configured(ctx context.Context, keep map[string]Pod) (map[string]*libcni.NetworkConfigList, error) {
	dirs := map[string]bool{"": true}
	for _, pod := range keep {
		dirs[pod.CNIConfDir] = true
	}
	out := map[string]*libcni.NetworkConfigList{}
	for dir := range dirs {
		lists, err := p.directory(dir).networks(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			continue
		}
		for _, list := range lists {
			out[list.Name] = list
		}
	}
	return out, nil
}

// valid are the attachments of the pods that are kept.
func (p *Plugins) valid(keep map[string]Pod) []types.GCAttachment {
	out := []types.GCAttachment{} // not nil: CNI asks for a list
	for id := range keep {
		for _, name := range p.interfaces(id) {
			out = append(out, types.GCAttachment{ContainerID: id, IfName: name})
		}
	}
	return out
}

// interfaces are those that a pod has by its journal. One without has eth0 at
// most; naming an interface that does not exist spares nothing wrongly.
func (p *Plugins) interfaces(id string) []string {
	entry, err := p.readJournal(id)
	if err != nil || entry == nil {
		return []string{defaultInterface}
	}
	var names []string
	for _, a := range entry.Attachments {
		names = append(names, a.Interface)
	}
	return names
}
