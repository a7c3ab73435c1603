package sandbox

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/pod"
)

// views serves status and lists of sandboxes.
type views struct{ Deps }

// PodSandboxStatus returns the status of a sandbox, without containers and without a timestamp: a
// kubelet with EventedPLEG (1.37) that finds a timestamp uses the containers of this response, and
// then treats none of them as active. Without a timestamp the kubelet lists the containers.
func (b *views) PodSandboxStatus(_ context.Context, r *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s, err := b.Pods.Index.Sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	resp := &runtimeapi.PodSandboxStatusResponse{Status: s.CRIStatus()}
	if r.GetVerbose() {
		resp.Info = b.info(s)
	}
	return resp, nil
}

// ListPodSandbox lists sandboxes, newest first.
func (b *views) ListPodSandbox(_ context.Context, r *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: b.List(r.GetFilter())}, nil
}

func (b *views) List(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	return pod.Items(b.Pods.Index.AllSandboxes(), func(o *pod.Sandbox) *runtimeapi.PodSandbox { return o.Item(f) })
}

// resizing serves UpdatePodSandboxResources.
type resizing struct{ Deps }

// UpdatePodSandboxResources records the kubelet's values. Runtimes that share the host's kernel
// need no more: the kubelet itself resizes the pod's cgroup.
func (b *resizing) UpdatePodSandboxResources(ctx context.Context, r *runtimeapi.UpdatePodSandboxResourcesRequest) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	s, err := b.Pods.Index.Sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if err := b.Hooks.Plugins.UpdatePodSandbox(ctx, b.Hooks.Pod(s), r.GetOverhead(), r.GetResources()); err != nil {
		return nil, err
	}
	err = s.Update(func(st *pod.SandboxStatus) error {
		st.Overhead.Msg, st.Resources.Msg = r.GetOverhead(), r.GetResources()
		return nil
	})
	if err != nil {
		return nil, err
	}
	b.Hooks.Plugins.PostUpdatePodSandbox(ctx, b.Hooks.Pod(s))
	return &runtimeapi.UpdatePodSandboxResourcesResponse{}, nil
}

// EncodedSandboxes is the encoded response of ListPodSandbox.
func (b *views) EncodedSandboxes(f *runtimeapi.PodSandboxFilter) ([]byte, error) {
	return b.Pods.Index.EncodedSandboxes(f)
}
