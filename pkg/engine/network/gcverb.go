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

// verbTimeout bounds the verb GC of one network: pods wait for it.
const verbTimeout = 10 * time.Second

// verbRetry is how soon a verb that found other plugins at work tries again.
const verbRetry = 50 * time.Millisecond

// turns keeps the verb GC apart from ADD and DEL, which CNI asks of who runs
// plugins. ADD and DEL run beside each other.
//
// https://www.cni.dev/docs/spec/#lifecycle--ordering
type turns struct{ s *semaphore.Weighted }

const allTurns = 1 << 30

// plugin waits while a verb is at work, for as long as ctx allows.
func (t turns) plugin(ctx context.Context) (end func(), err error) {
	if err := t.s.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("wait for the network's garbage collection: %w", err)
	}
	return func() { t.s.Release(1) }, nil
}

// verb waits for a moment at which no plugin runs. It does not line up for it:
// one that hangs would then keep all pods waiting.
func (t turns) verb(ctx context.Context) (end func(), err error) {
	tick := time.NewTicker(verbRetry)
	defer tick.Stop()
	for !t.s.TryAcquire(allTurns) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("other plugins were busy; the next start retries: %w", ctx.Err())
		}
	}
	return func() { t.s.Release(allTurns) }, nil
}

// sendVerb sends GC to each network once, if nobody else uses them.
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
	end, err := l.p.turns.verb(ctx)
	if err != nil {
		return err
	}
	defer end()
	ctx, cancel := context.WithTimeout(ctx, verbTimeout)
	defer cancel()
	// libcni also runs DEL for what its cache has and is not valid. That was done,
	// when no pod had to wait for it, so it is shown a cache without anything.
	cni := libcni.NewCNIConfigWithCacheDir(l.p.config.BinDirs, filepath.Join(l.p.config.CacheDir, "empty"), &pluginExec{})
	return cni.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: l.attachments()})
}

// networks are those of the node and of the pods' handlers, by name. A
// directory without any configuration has nothing to collect.
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

// staying are the valid pods and those that this process connected, by id.
func (l *Leftovers) staying() map[string]Pod {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	pods := maps.Clone(l.p.young)
	maps.Copy(pods, l.valid)
	return pods
}

// attachments are those of the pods that stay.
func (l *Leftovers) attachments() []types.GCAttachment {
	out := []types.GCAttachment{} // not nil: CNI asks for a list
	for id := range l.staying() {
		for _, name := range l.p.interfaces(id) {
			out = append(out, types.GCAttachment{ContainerID: id, IfName: name})
		}
	}
	return out
}

// interfaces are those that a pod has by its journal. One without has eth0 at
// most; naming an interface that does not exist spares nothing wrongly.
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
