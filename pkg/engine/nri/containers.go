package nri

import (
	"context"

	"github.com/containerd/nri/pkg/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CreateContainer asks plugins what to change in the spec of a new container;
// the answer is for Adjust, and nil if there is nothing to do. What they want of
// other containers is done before it returns. Shown must follow, or, also after
// an error, RemoveContainer.
func (p *Plugins) CreateContainer(ctx context.Context, s Subject) (*api.ContainerAdjustment, error) {
	response, err := ask(ctx, p, "CreateContainer", func() (*api.CreateContainerResponse, error) {
		p.set(s.ID(), created)
		p.arriving[s.ID()] = s
		if !p.listening() {
			return nil, nil
		}
		return p.adaptation.CreateContainer(ctx, &api.CreateContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
	if err != nil {
		return nil, err
	}
	p.apply(ctx, response.GetUpdate())
	return response.GetAdjust(), nil
}

// Shown calls show, which makes a container visible that CreateContainer was
// called for.
func (p *Plugins) Shown(s Subject, show func() error) error {
	leave, ok := p.enter()
	if !ok {
		return show()
	}
	defer leave()
	err := show()
	if err == nil {
		delete(p.arriving, s.ID())
	}
	return err
}

// PostCreateContainer tells plugins that a container is created.
func (p *Plugins) PostCreateContainer(ctx context.Context, s Subject) {
	p.post(ctx, "PostCreateContainer", s, func() error {
		return p.adaptation.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
}

// StartContainer asks plugins before a container is started.
func (p *Plugins) StartContainer(ctx context.Context, s Subject) error {
	_, err := ask(ctx, p, "StartContainer", func() (any, error) {
		p.set(s.ID(), running)
		if !p.listening() {
			return nil, nil
		}
		return nil, p.adaptation.StartContainer(ctx, &api.StartContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
	return err
}

// PostStartContainer tells plugins that a container runs.
func (p *Plugins) PostStartContainer(ctx context.Context, s Subject) {
	p.post(ctx, "PostStartContainer", s, func() error {
		return p.adaptation.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
}

// UpdateContainer asks plugins before limits of a container change, and returns
// what is to be done in place of the request; nil is the request itself. What
// they want of other containers is done before it returns: no lock of a
// container may be held.
func (p *Plugins) UpdateContainer(ctx context.Context, s Subject, change *runtimeapi.LinuxContainerResources) (*api.LinuxResources, error) {
	response, err := ask(ctx, p, "UpdateContainerResources", func() (*api.UpdateContainerResponse, error) {
		if !p.listening() {
			return nil, nil
		}
		return p.adaptation.UpdateContainer(ctx, &api.UpdateContainerRequest{
			Pod: s.Pod().message(), Container: s.Container().message(), LinuxResources: fromCRI(change),
		})
	})
	if err != nil {
		return nil, err
	}
	updates := response.GetUpdate()
	if len(updates) == 0 {
		return nil, nil
	}
	// The last one is about the container itself.
	last := len(updates) - 1
	own := updates[last].GetLinux().GetResources()
	if err := unchangeable(own); err != nil {
		return nil, err
	}
	p.apply(ctx, updates[:last])
	return own, nil
}

// PostUpdateContainer tells plugins that they have changed.
func (p *Plugins) PostUpdateContainer(ctx context.Context, s Subject) {
	p.post(ctx, "PostUpdateContainer", s, func() error {
		return p.adaptation.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
}

// StopContainer tells plugins that a container has ended, however it did. It may
// be called by all that know of the end: the first tells, and all return when it
// is told. What plugins want of other containers is done before the first
// returns: no lock of a container may be held.
func (p *Plugins) StopContainer(ctx context.Context, s Subject) {
	p.endContainer(ctx, s, false)
}

// RemoveContainer tells plugins that a container is gone, and before that, if
// need be, that it has ended. As with StopContainer, no lock of another
// container may be held.
func (p *Plugins) RemoveContainer(ctx context.Context, s Subject) {
	p.endContainer(ctx, s, true)
}

func (p *Plugins) endContainer(ctx context.Context, s Subject, remove bool) {
	if p == nil {
		return
	}
	uncancelled := context.WithoutCancel(ctx)
	var updates []*api.ContainerUpdate
	p.tell(func() {
		updates = p.stopContainer(uncancelled, s)
		if remove {
			p.removeContainer(uncancelled, s)
		}
	})
	p.apply(uncancelled, updates)
}

// stopContainer needs p.mu.
func (p *Plugins) stopContainer(ctx context.Context, s Subject) (updates []*api.ContainerUpdate) {
	p.advance(ctx, s, stopped, "StopContainer", func() error {
		r, err := p.adaptation.StopContainer(ctx, &api.StopContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
		updates = r.GetUpdate()
		return err
	})
	return updates
}

// removeContainer needs p.mu.
func (p *Plugins) removeContainer(ctx context.Context, s Subject) {
	delete(p.arriving, s.ID()) // if it did not come about
	p.advance(ctx, s, unknown, "RemoveContainer", func() error {
		return p.adaptation.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
}
