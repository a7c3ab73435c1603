package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sync/semaphore"
)

// verbTimeout limits the verb GC of one network, because pods wait for it.
const verbTimeout = 10 * time.Second

// verbRetry is the interval at which exclusive tries again while plugins run.
const verbRetry = 50 * time.Millisecond

// pluginLock excludes the verb GC from ADD and DEL, as CNI demands of a runtime. ADD and DEL run in
// parallel.
//
// https://www.cni.dev/docs/spec/#lifecycle--ordering
type pluginLock struct{ s *semaphore.Weighted }

const exclusiveWeight = 1 << 30

// shared waits until no verb GC runs, or ctx ends.
func (t pluginLock) shared(ctx context.Context) (end func(), err error) {
	if err := t.s.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("wait for the network's garbage collection: %w", err)
	}
	return func() { t.s.Release(1) }, nil
}

// exclusive waits for a moment at which no plugin runs. It polls, because pods would otherwise
// queue behind it while it waits for a plugin that hangs.
func (t pluginLock) exclusive(ctx context.Context) (end func(), err error) {
	tick := time.NewTicker(verbRetry)
	defer tick.Stop()
	for !t.s.TryAcquire(exclusiveWeight) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("other plugins were running; the next start of berth retries: %w", ctx.Err())
		}
	}
	return func() { t.s.Release(exclusiveWeight) }, nil
}

// sendVerb sends GC to each network once, if Config.GC is set.
func (l *Leftovers) sendVerb(ctx context.Context) error {
	if !l.p.config.GC {
		return nil
	}
	lists, err := l.networks(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for name, list := range lists {
		if !hasVerbs(list) || list.DisableGC {
			continue
		}
		if err := l.sendTo(ctx, list); err != nil {
			errs = append(errs, fmt.Errorf("network %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (l *Leftovers) sendTo(ctx context.Context, list *libcni.NetworkConfigList) error {
	end, err := l.p.pluginLock.exclusive(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, verbTimeout)
	defer cancel()
	// libcni would also run DEL for entries of its cache that are not valid. Collect has done that
	// already, without blocking pods, so libcni gets an empty cache.
	cni := libcni.NewCNIConfigWithCacheDir(l.p.config.BinDirs, filepath.Join(l.p.config.CacheDir, "empty"), &pluginExec{})
	return cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: l.attachments()})
}

// networks returns the networks of the node and of the pods' handlers, by name. It skips a
// directory that it cannot load, such as one without a configuration.
func (l *Leftovers) networks(ctx context.Context) (map[string]*libcni.NetworkConfigList, error) {
	dirs := map[string]bool{"": true}
	for _, pod := range l.staying() {
		dirs[pod.CNIConfDir] = true
	}
	out := map[string]*libcni.NetworkConfigList{}
	for dir := range dirs {
		lists, err := l.p.networks(ctx, dir)
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

// staying returns the valid pods and those that this process connected, by id.
func (l *Leftovers) staying() map[string]Pod {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	pods := maps.Clone(l.p.active)
	maps.Copy(pods, l.valid)
	return pods
}

// attachments returns the attachments of the pods that stay.
func (l *Leftovers) attachments() []types.GCAttachment {
	out := []types.GCAttachment{} // not nil: CNI requires a list
	for id := range l.staying() {
		for _, name := range l.p.interfaces(id) {
			out = append(out, types.GCAttachment{ContainerID: id, IfName: name})
		}
	}
	return out
}

// interfaces returns the interface names in a pod's journal. A pod without a journal has at most
// eth0, and GC ignores a name that does not exist.
func (p *Plugins) interfaces(id string) []string {
	entry, err := p.journal.read(id)
	if err != nil || entry == nil {
		return []string{defaultInterface}
	}
	var names []string
	for _, a := range entry.Attachments {
		names = append(names, a.Interface)
	}
	return names
}
