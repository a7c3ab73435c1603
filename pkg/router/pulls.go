package router

import (
	"context"
	"maps"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pulls knows the newest sandbox of each pod, by the pod's uid: where there are several stores of
// images, a pull goes to that of its pod.
type pulls struct {
	mu   sync.Mutex
	pods map[string]string
}

// made notes a new sandbox of a pod. Pods whose sandbox was removed by others are forgotten then.
func (p *pulls) made(o *owners, uid, sandbox string) {
	if uid == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pods[uid] == "" {
		maps.DeleteFunc(p.pods, func(_, sandbox string) bool { return o.sandboxes.get(sandbox) == nil })
	}
	if p.pods == nil {
		p.pods = map[string]string{}
	}
	p.pods[uid] = sandbox
}

// removed forgets the pod of a removed sandbox, unless it has a newer one.
func (p *pulls) removed(sandbox string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.pods, func(_, newest string) bool { return newest == sandbox })
}

// pod finds the owner of a pod's newest sandbox, or nil. A pod that was there
// before the daemon started is looked for.
func (p *pulls) pod(ctx context.Context, o *owners, uid string) *Owner {
	if uid == "" {
		return nil
	}
	p.mu.Lock()
	known := p.pods[uid]
	p.mu.Unlock()
	if owner := o.sandboxes.get(known); owner != nil {
		return owner
	}
	listed, err := lists{owners: o}.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil
	}
	var newest *runtimeapi.PodSandbox
	for _, s := range understood(listed).GetItems() {
		if s.GetMetadata().GetUid() == uid && (newest == nil || s.GetCreatedAt() > newest.GetCreatedAt()) {
			newest = s
		}
	}
	owner := o.sandboxes.get(newest.GetId())
	if owner != nil {
		p.made(o, uid, owner.ID)
	}
	return owner
}
