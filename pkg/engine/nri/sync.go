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

// updateTimeout bounds one update that a plugin asks for: a container that is
// stuck must not hold up the calls of others.
const updateTimeout = 10 * time.Second

// synchronize tells one new plugin, or all that were just started, of the whole
// node.
func (p *Plugins) synchronize(ctx context.Context, plugin adaptation.SyncCB) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods, containers := p.everything()
	updates, err := plugin(ctx, pods, containers)
	if err != nil {
		return err
	}
	// Hooks are kept out until this returns, and one of them may hold the lock
	// of a container that is to be updated.
	before, done := p.settled.next()
	go func() {
		defer done()
		<-before
		_ = p.update(ctx, updates)
	}()
	return nil
}

// everything is the node as plugins see it: pods in every state, containers that
// have not ended. It needs p.mu.
func (p *Plugins) everything() (pods []*api.PodSandbox, containers []*api.Container) {
	for _, s := range p.node.Pods() {
		pod := s.Pod()
		pods = append(pods, pod.message())
		p.set(s.ID(), pod.stage())
	}
	add := func(s Subject) {
		c := s.Container()
		if c.State == api.ContainerState_CONTAINER_CREATED && p.stages[s.ID()] == running {
			// The others were told of its start, which is under way.
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
	for _, s := range p.arriving {
		add(s)
	}
	return pods, containers
}

// unsolicited serves a plugin that wants containers changed. The plugin gets the
// error; the list would reach it only without one.
func (p *Plugins) unsolicited(ctx context.Context, updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	p.settled.wait(ctx)
	return nil, p.update(ctx, updates)
}

// apply does what plugins want of other containers because of a hook. What fails
// is logged: the hook's own call goes on.
func (p *Plugins) apply(ctx context.Context, updates []*api.ContainerUpdate) {
	if len(updates) == 0 {
		return
	}
	p.settled.wait(ctx)
	_ = p.update(ctx, updates)
}

// update tries all, logs what fails, and returns of that what may not be ignored.
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
	// What the runtime has begun is not cut short, only no longer waited for.
	go func() { ended <- p.node.UpdateContainer(ctx, u.GetContainerId(), u.GetLinux().GetResources()) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return fmt.Errorf("container %s cannot be updated: %w", u.GetContainerId(), ctx.Err())
	}
}

// unchangeable refuses what a runtime cannot change in a container that exists:
// it would be dropped without a word.
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

// settled makes later updates wait for those that plugins asked for when they
// registered, which are done beside everything else.
type settled struct {
	mu   sync.Mutex
	last chan struct{} // closed when the last round has ended
}

// next begins one more such round, which follows the one before it.
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
