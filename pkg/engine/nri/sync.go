package nri

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

// updateTimeout limits one update that a plugin requests: a container that hangs must not delay
// other calls.
const updateTimeout = 10 * time.Second

// synchronize sends all pods and containers to one new plugin, or to all that were just started.
func (p *Plugins) synchronize(ctx context.Context, plugin adaptation.SyncCB) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods, containers := p.everything()
	updates, err := plugin(ctx, pods, containers)
	if err != nil {
		return err
	}
	// Hooks wait until synchronize returns, and the caller of a hook may hold the lock of a
	// container to update. Therefore the updates run in the background.
	before, done := p.settled.next()
	go func() {
		defer done()
		<-before
		_ = p.update(ctx, updates)
	}()
	return nil
}

// everything returns what plugins see of the node: pods in every state, and containers that have
// not exited. It needs p.mu.
func (p *Plugins) everything() (pods []*api.PodSandbox, containers []*api.Container) {
	for _, s := range p.node.Pods() {
		pod := s.Pod()
		pods = append(pods, pod.message())
		p.set(s.ID(), pod.stage())
	}
	add := func(s Subject) {
		c := s.Container()
		if c.State == api.ContainerState_CONTAINER_CREATED && p.stages[s.ID()] == running {
			// Other plugins already received its StartContainer, which is in progress.
			c.State = api.ContainerState_CONTAINER_RUNNING
		}
		if st := stageOf[c.State]; st == created || st == running {
			containers = append(containers, c.message())
			p.set(s.ID(), st)
		}
	}
	for _, s := range p.node.Containers() {
		add(s)
	}
	for _, s := range p.creating {
		add(s)
	}
	return pods, containers
}

// unsolicited serves a plugin that requests updates on its own. It returns no list of failed
// updates, because a plugin that gets an error does not get the list.
func (p *Plugins) unsolicited(ctx context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	p.settled.wait(ctx)
	return nil, p.update(ctx, updates)
}

// apply applies updates of other containers that plugins request in a hook. Failures are only
// logged, so that the hook's own call continues.
func (p *Plugins) apply(ctx context.Context, updates []*api.ContainerUpdate) {
	if len(updates) == 0 {
		return
	}
	p.settled.wait(ctx)
	_ = p.update(ctx, updates)
}

// update tries all updates, logs each failure and returns the failures that the plugin does not
// ignore.
func (p *Plugins) update(ctx context.Context, updates []*api.ContainerUpdate) error {
	var bad []error
	for _, u := range updates {
		err := p.updateOne(ctx, u)
		if err == nil {
			continue
		}
		log.G(ctx).WithError(err).WithField("container", u.GetContainerId()).Error("Failed to apply update requested by NRI plugin")
		if !u.GetIgnoreFailure() {
			bad = append(bad, fmt.Errorf("container %s: %w", u.GetContainerId(), err))
		}
	}
	return errors.Join(bad...)
}

func (p *Plugins) updateOne(ctx context.Context, u *api.ContainerUpdate) error {
	if u.GetLinux().GetResources() == nil {
		return nil
	}
	if err := unchangeable(u.GetLinux().GetResources()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	ended := make(chan error, 1)
	// An update that the runtime has begun is not cancelled; only the wait for it ends.
	go func() { ended <- p.node.UpdateContainer(ctx, u.GetContainerId(), u.GetLinux().GetResources()) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return fmt.Errorf("container %s cannot be updated: %w", u.GetContainerId(), ctx.Err())
	}
}

// unchangeable refuses resources that a runtime cannot change in an existing container, which would
// otherwise be dropped.
func unchangeable(r *api.LinuxResources) error {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"blockio_class", r.GetBlockioClass() != nil},
		{"rdt_class", r.GetRdtClass() != nil},
		{"devices", len(r.GetDevices()) > 0},
	} {
		if f.set {
			return fmt.Errorf("%s of an existing container cannot be changed; set it when the container is created: %w", f.name, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// settled makes later updates wait for those that plugins requested at registration, which run in
// the background.
type settled struct {
	mu   sync.Mutex
	last chan struct{} // closed when the last registration's updates have ended
}

// next begins the updates of a registration. They wait for before, and then call done.
func (s *settled) next() (before chan struct{}, done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, own := s.last, make(chan struct{})
	s.last = own
	return before, func() { close(own) }
}

func (s *settled) wait(ctx context.Context) {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	select {
	case <-last:
	case <-ctx.Done():
	}
}
