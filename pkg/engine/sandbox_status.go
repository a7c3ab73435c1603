package engine

import (
	"context"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/nri"
)

// sandboxViews show sandboxes to callers.
type sandboxViews struct {
	layout
	objects  *objects
	runtimes *runtimes
}

func (s *sandbox) state() runtimeapi.PodSandboxState {
	if st := s.Status(); st.Phase == phaseReady && !st.Stopping {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// PodSandboxStatus tells everything about one sandbox. It tells nothing about its
// containers, and has no timestamp: a kubelet with EventedPLEG (1.37) that finds one
// takes the containers from here, and then holds none of them for active. It lists
// them otherwise.
func (b *sandboxViews) PodSandboxStatus(_ context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s, err := b.objects.sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.PodSandboxStatusResponse{Status: s.status()}
	if r.GetVerbose() {
		resp.Info = b.info(s)
	}
	return resp, nil
}

func (s *sandbox) status() *runtimeapi.PodSandboxStatus {
	c := s.config()
	status := &runtimeapi.PodSandboxStatus{
		Id:             s.ID(),
		Metadata:       c.GetMetadata(),
		State:          s.state(),
		CreatedAt:      s.Spec().CreatedAt,
		Labels:         c.GetLabels(),
		Annotations:    c.GetAnnotations(),
		RuntimeHandler: s.Spec().Handler,
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: namespaceOptions(c),
		}},
	}
	if s.Spec().Plan.Net {
		status.Network = &runtimeapi.PodSandboxNetworkStatus{}
		if n := s.Status().Network; n != nil && len(n.IPs) > 0 {
			status.Network.Ip = n.IPs[0]
			for _, ip := range n.IPs[1:] {
				status.Network.AdditionalIps = append(status.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
			}
		}
	}
	return status
}

// namespaceOptions echoes what was asked for: the kubelet recreates a pod whose
// answer differs.
func namespaceOptions(c *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
	if o := c.GetLinux().GetSecurityContext().GetNamespaceOptions(); o != nil {
		return o
	}
	return &runtimeapi.NamespaceOption{}
}

// ListPodSandbox lists sandboxes, newest first.
func (b *sandboxViews) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: b.list(r.GetFilter())}, nil
}

func (b *sandboxViews) list(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	all := b.objects.allSandboxes()
	items := make([]*runtimeapi.PodSandbox, 0, len(all))
	for _, s := range all {
		if state := s.state(); s.matchesIn(state, f) {
			items = append(items, s.itemIn(state))
		}
	}
	return items
}

func (s *sandbox) itemIn(state runtimeapi.PodSandboxState) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{
		Id: s.ID(), Metadata: s.config().GetMetadata(), State: state, CreatedAt: s.Spec().CreatedAt,
		Labels: s.config().GetLabels(), Annotations: s.config().GetAnnotations(), RuntimeHandler: s.Spec().Handler,
	}
}

func (s *sandbox) matches(f *runtimeapi.PodSandboxFilter) bool { return s.matchesIn(s.state(), f) }

// matchesIn is as that of containers.
func (s *sandbox) matchesIn(state runtimeapi.PodSandboxState, f *runtimeapi.PodSandboxFilter) bool {
	return strings.HasPrefix(s.ID(), f.GetId()) &&
		(f.GetState() == nil || f.GetState().GetState() == state) &&
		selects(f.GetLabelSelector(), s.config().GetLabels())
}

// selects tells whether labels have every pair of selector.
func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// sandboxResizing serves the call about the limits of pods.
type sandboxResizing struct {
	objects *objects
	hooks   *hooks
	plugins *nri.Plugins // nil unless there can be any
}

// UpdatePodSandboxResources remembers what the kubelet sends. Runtimes that
// share the host's kernel need no more: the pod's cgroup is the kubelet's.
func (b *sandboxResizing) UpdatePodSandboxResources(ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	s, err := b.objects.sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if err := b.plugins.UpdatePodSandbox(ctx, b.hooks.pod(s), r.GetOverhead(), r.GetResources()); err != nil {
		return nil, err
	}
	err = s.Update(func(st *sandboxStatus) error {
		st.Overhead.msg, st.Resources.msg = r.GetOverhead(), r.GetResources()
		return nil
	})
	if err != nil {
		return nil, err
	}
	b.plugins.PostUpdatePodSandbox(ctx, b.hooks.pod(s))
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}
