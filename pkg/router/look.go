package router

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Find returns the owner of a sandbox or container by its id or a unique
// beginning of it. The class is ErrNotFound, or ErrInvalidArgument for the
// beginning of several ids, which the text lists.
func (p *Pods) Find(id string) (*Owner, error) {
	if id == "" {
		return nil, fmt.Errorf("the ID is empty; use the ID of a sandbox or container, or a prefix of it: %w", errdefs.ErrInvalidArgument)
	}
	sandbox, err := p.owners.sandboxes.resolve(id)
	if err != nil {
		return nil, err
	}
	container, err := p.owners.containers.resolve(id)
	switch {
	case err != nil:
		return nil, err
	case sandbox != nil && container != nil:
		return nil, ambiguous(id, []*Owner{sandbox, container})
	case sandbox != nil:
		return sandbox, nil
	case container != nil:
		return container, nil
	}
	return nil, fmt.Errorf("no sandbox or container has an ID with the prefix %q: %w", shorten(id), errdefs.ErrNotFound)
}

// Ready says whether the gate is open.
func (r *Router) Ready() bool { return r.gate.open.Load() }

// ListPodSandbox answers as the CRI call does, for callers in this process.
func (r *Router) ListPodSandbox(ctx context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	if !r.gate.open.Load() {
		return nil, errNotReady
	}
	resp, err := r.runtime.ListPodSandbox(ctx, req)
	if err != nil {
		return nil, err
	}
	return understood(resp), nil
}
