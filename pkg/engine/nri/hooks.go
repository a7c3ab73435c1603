package nri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// enter waits until the plugins are started and no other hook runs, and blocks the registration of
// new plugins until leave is called. ok is false if p is nil or was closed.
func (p *Plugins) enter() (leave func(), ok bool) {
	if p == nil {
		return nil, false
	}
	select {
	case <-p.started:
	case <-p.closed:
		return nil, false
	}
	block := p.adaptation.BlockPluginSync()
	p.mu.Lock()
	return func() {
		p.mu.Unlock()
		block.Unblock()
	}, true
}

// hasPlugins reports whether a plugin is registered. It needs p.mu, so that no plugin registers
// between this check and the hook.
func (p *Plugins) hasPlugins() bool { return p.count.Load() > 0 }

// refused returns the error of a call that a plugin rejected. It sets the class, because the errors
// of plugins have none.
func refused(ctx context.Context, call string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("an NRI plugin rejected %s: %s: %w", call, status.Convert(err).Message(), errdefs.ErrFailedPrecondition)
}

// RunPodSandbox notifies plugins of a new pod and, unless one of them rejects it, calls show, which
// makes the pod visible. If either fails, plugins are notified that the pod is removed.
func (p *Plugins) RunPodSandbox(ctx context.Context, s Subject, show func() error) error {
	leave, ok := p.enter()
	if !ok {
		return show()
	}
	defer leave()
	p.set(s.ID(), running)
	var err error
	if p.hasPlugins() {
		if err = p.adaptation.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: s.Pod().message()}); err != nil {
			err = refused(ctx, "RunPodSandbox", err)
		}
	}
	if err == nil {
		err = show()
	}
	if err != nil {
		ctx := context.WithoutCancel(ctx)
		p.stopPod(ctx, s)
		p.removePod(ctx, s)
	}
	return err
}

// StopPodSandbox notifies plugins that the processes of a pod have exited. The pod still has its
// network.
func (p *Plugins) StopPodSandbox(ctx context.Context, s Subject) {
	p.runHook(func() { p.stopPod(context.WithoutCancel(ctx), s) })
}

// RemovePodSandbox notifies plugins that a pod is removed.
func (p *Plugins) RemovePodSandbox(ctx context.Context, s Subject) {
	p.runHook(func() {
		ctx := context.WithoutCancel(ctx)
		p.stopPod(ctx, s)
		p.removePod(ctx, s)
	})
}

// notify calls a hook if there are plugins, and only logs its failure. It needs p.mu.
func (p *Plugins) notify(ctx context.Context, hook string, s Subject, call func() error) {
	if !p.hasPlugins() {
		return
	}
	if err := call(); err != nil {
		log.G(ctx).WithError(err).WithFields(log.Fields{"hook": hook, "id": s.ID()}).Error("NRI plugin failed")
	}
}

// post is notify for an event that has happened. It locks p.mu.
func (p *Plugins) post(ctx context.Context, hook string, s Subject, call func() error) {
	p.runHook(func() { p.notify(ctx, hook, s, call) })
}

// ask runs a hook in which plugins may reject a call.
func ask[R any](ctx context.Context, p *Plugins, call string, hook func() (R, error)) (answer R, err error) {
	leave, ok := p.enter()
	if !ok {
		return answer, nil
	}
	defer leave()
	if answer, err = hook(); err != nil {
		return answer, refused(ctx, call, err)
	}
	return answer, nil
}

// runHook runs hooks that cannot reject a call.
func (p *Plugins) runHook(hook func()) {
	if leave, ok := p.enter(); ok {
		defer leave()
		hook()
	}
}

// advance calls the hook for the exit or removal of an object, once and only if plugins know the
// object. to is the object's new stage: stopped, or unknown if it is removed. advance needs p.mu.
func (p *Plugins) advance(ctx context.Context, s Subject, to stage, hook string, call func() error) {
	if at := p.stages[s.ID()]; at == unknown || at == to {
		return
	}
	p.set(s.ID(), to)
	p.notify(ctx, hook, s, call)
}

// stopPod needs p.mu.
func (p *Plugins) stopPod(ctx context.Context, s Subject) {
	p.advance(ctx, s, stopped, "StopPodSandbox", func() error {
		return p.adaptation.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: s.Pod().message()})
	})
}

// removePod needs p.mu.
func (p *Plugins) removePod(ctx context.Context, s Subject) {
	p.advance(ctx, s, unknown, "RemovePodSandbox", func() error {
		return p.adaptation.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: s.Pod().message()})
	})
}

// UpdatePodSandbox asks plugins, which may reject the call, before the resources of a pod change.
func (p *Plugins) UpdatePodSandbox(ctx context.Context, s Subject, overhead, resources *runtimeapi.LinuxContainerResources) error {
	_, err := ask(ctx, p, "UpdatePodSandboxResources", func() (*api.UpdatePodSandboxResponse, error) {
		if !p.hasPlugins() {
			return nil, nil
		}
		return p.adaptation.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
			Pod: s.Pod().message(), OverheadLinuxResources: fromCRI(overhead), LinuxResources: fromCRI(resources),
		})
	})
	return err
}

// PostUpdatePodSandbox notifies plugins that the resources have changed.
func (p *Plugins) PostUpdatePodSandbox(ctx context.Context, s Subject) {
	p.post(ctx, "PostUpdatePodSandbox", s, func() error {
		return p.adaptation.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: s.Pod().message()})
	})
}
