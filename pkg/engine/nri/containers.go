package nri

import (
	"context"

	"github.com/containerd/nri/pkg/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CreateContainer asks plugins for changes to the spec of a new container, and returns them for
// Adjust, or nil. It applies the updates of other containers that they request. The caller must
// then call Shown, or RemoveContainer, even after an error.
func (p *Plugins) CreateContainer(ctx context.Context, s Subject) (*api.ContainerAdjustment, error) {
	response, err := ask(ctx, p, "CreateContainer", func() (*api.CreateContainerResponse, error) {
		p.set(s.ID(), created)
		p.creating[s.ID()] = s
		if !p.hasPlugins() {
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

// Shown calls show, which makes a container visible after CreateContainer.
func (p *Plugins) Shown(s Subject, show func() error) error {
	leave, ok := p.enter()
	if !ok {
		return show()
	}
	defer leave()
	err := show()
	if err == nil {
		delete(p.creating, s.ID())
	}
	return err
}

// PostCreateContainer notifies plugins that a container is created.
func (p *Plugins) PostCreateContainer(ctx context.Context, s Subject) {
	p.post(ctx, "PostCreateContainer", s, func() error {
		return p.adaptation.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
}

// StartContainer asks plugins, which may reject the call, before a container is started.
func (p *Plugins) StartContainer(ctx context.Context, s Subject) error {
	_, err := ask(ctx, p, "StartContainer", func() (any, error) {
		p.set(s.ID(), running)
		if !p.hasPlugins() {
			return nil, nil
		}
		return nil, p.adaptation.StartContainer(ctx, &api.StartContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
	return err
}

// PostStartContainer notifies plugins that a container runs.
func (p *Plugins) PostStartContainer(ctx context.Context, s Subject) {
	p.post(ctx, "PostStartContainer", s, func() error {
		return p.adaptation.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
}

// UpdateContainer asks plugins before limits of a container change. It returns the resources to
// apply in place of the request, or nil for the request itself. Updates of other containers are
// applied before it returns, so the caller must not hold the lock of a container.
func (p *Plugins) UpdateContainer(ctx context.Context, s Subject, change *runtimeapi.LinuxContainerResources) (*api.LinuxResources, error) {
	response, err := ask(ctx, p, "UpdateContainerResources", func() (*api.UpdateContainerResponse, error) {
		if !p.hasPlugins() {
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
	// The last update is for the container itself.
	last := len(updates) - 1
	own := updates[last].GetLinux().GetResources()
	if err := unchangeable(own); err != nil {
		return nil, err
	}
	p.apply(ctx, updates[:last])
	return own, nil
}

// PostUpdateContainer notifies plugins that the limits have changed.
func (p *Plugins) PostUpdateContainer(ctx context.Context, s Subject) {
	p.post(ctx, "PostUpdateContainer", s, func() error {
		return p.adaptation.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
}

// StopContainer notifies plugins that a container has exited, for whatever reason. Several callers
// may report the same exit: the first call notifies, and the others return after it. The first call
// also applies updates of other containers, so the caller must not hold the lock of a container.
func (p *Plugins) StopContainer(ctx context.Context, s Subject) {
	p.endContainer(ctx, s, false)
}

// RemoveContainer notifies plugins of a container's exit, unless they were notified before, and
// then of its removal. As with StopContainer, the caller must not hold another container's lock.
func (p *Plugins) RemoveContainer(ctx context.Context, s Subject) {
	p.endContainer(ctx, s, true)
}

func (p *Plugins) endContainer(ctx context.Context, s Subject, remove bool) {
	if p == nil {
		return
	}
	uncancelled := context.WithoutCancel(ctx)
	var updates []*api.ContainerUpdate
	p.runHook(func() {
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
	delete(p.creating, s.ID()) // if its creation failed
	p.advance(ctx, s, unknown, "RemoveContainer", func() error {
		return p.adaptation.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: s.Pod().message(), Container: s.Container().message()})
	})
}
