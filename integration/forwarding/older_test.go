package forwarding

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// listForms are all lists that the CRI has in a unary and a streamed form.
var listForms = map[string]string{
	"ListPodSandbox": "StreamPodSandboxes", "ListContainers": "StreamContainers", "ListContainerStats": "StreamContainerStats",
	"ListPodSandboxStats": "StreamPodSandboxStats", "ListPodSandboxMetrics": "StreamPodSandboxMetrics", "ListImages": "StreamImages",
}

func startLacking(t *testing.T, name string, lacking ...string) *peer {
	t.Helper()
	p := startPeer(t, thisCRI(), name, 2)
	for unary, stream := range listForms {
		if unary != "ListPodSandbox" && unary != "ListContainers" { // the peer makes these of its pods
			p.answers[unary], p.answers[stream] = p.fully, p.fully
		}
	}
	for _, method := range lacking {
		p.lacking[method] = true
	}
	return p
}

// items counts the items of a list.
func items(m protoreflect.Message) int {
	return m.Get(m.Descriptor().Fields().ByNumber(1)).List().Len()
}

// lists makes all calls of listForms several times, and fails unless each returns the wanted number
// of items. It returns how often a peer was called in each form.
func (n *node) lists(t *testing.T, times int, want map[string]int) map[string]int {
	t.Helper()
	n.one.counted()
	n.two.counted()
	for range times {
		for unary, stream := range listForms {
			for _, name := range []string{unary, stream} {
				m := n.named(name)
				got, err := n.call(bounded(t), m, dynamicpb.NewMessage(m.Input()))
				if err != nil {
					t.Errorf("%s: %v", name, err)
				} else if items(got) != want[unary] {
					t.Errorf("%s: %d items, want %d", name, items(got), want[unary])
				}
			}
		}
	}
	counted := n.one.counted()
	for name, calls := range n.two.counted() {
		counted[name] = max(counted[name], calls)
	}
	return counted
}

// If an old daemon lacks a call, berth makes another one, or returns an error that names the daemon.
func TestOldDaemon(t *testing.T) {
	old := slices.Concat(slices.Collect(maps.Values(listForms)), []string{
		"GetContainerEvents", "ListMetricDescriptors", "ListPodSandboxMetrics", "RuntimeConfig", "PodSandboxStats", "ListPodSandboxStats",
		"UpdatePodSandboxResources", "UpdateRuntimeConfig", "CheckpointContainer", "CheckpointPod", "RestorePod",
	})
	n := startNode(t, startLacking(t, "one", old...), startLacking(t, "two", old...), "")
	ctx := bounded(t)
	// Without events, a kubelet lists pods.
	events, err := n.Client.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err == nil {
		_, err = events.Recv()
	}
	if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "has no events") {
		t.Errorf("subscribe to events: %v, want unimplemented", err)
	}
	want := map[string]int{"ListPodSandbox": 4, "ListContainers": 4, "ListContainerStats": 2, "ListImages": 2}
	n.lists(t, 1, want)
	counted := n.lists(t, 5, want)
	for _, lacks := range old {
		if counted[lacks] > 0 {
			t.Errorf("a peer without %s was called %d times for it", lacks, counted[lacks])
		}
	}
	sandbox, container := id('5', "two", 0), id('c', "two", 0)
	for name, call := range map[string]func(context.Context) error{
		"PodSandboxStats": func(ctx context.Context) error {
			_, err := n.Client.PodSandboxStats(ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: sandbox})
			return err
		},
		"UpdatePodSandboxResources": func(ctx context.Context) error {
			_, err := n.Client.UpdatePodSandboxResources(ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: sandbox})
			return err
		},
		"CheckpointContainer": func(ctx context.Context) error {
			_, err := n.Client.CheckpointContainer(ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: container})
			return err
		},
		"RestorePod": func(ctx context.Context) error {
			_, err := n.Client.RestorePod(ctx, &runtimeapi.RestorePodRequest{RuntimeHandler: "two"})
			return err
		},
	} {
		err := call(ctx)
		if status.Code(err) != codes.Unimplemented || !strings.Contains(err.Error(), `handler "two"`) || !strings.Contains(err.Error(), n.two.socket) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want unimplemented by the peer", name, err)
		}
	}
	// Without RuntimeConfig, a kubelet uses its own configuration.
	if _, err := n.Client.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}); status.Code(err) != codes.Unimplemented {
		t.Error(err)
	}
	if _, err := n.Client.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{}}); err != nil {
		t.Error(err)
	}
	if d, err := n.Client.ListMetricDescriptors(ctx, &runtimeapi.ListMetricDescriptorsRequest{}); err != nil || len(d.GetDescriptors()) == 0 {
		t.Errorf("list berth's own metrics: %v, %v", d, err)
	}
	for _, p := range []*peer{n.one, n.two} {
		if s, err := n.Client.Status(ctx, &runtimeapi.StatusRequest{}); err != nil || !announces(s, p.name) {
			t.Errorf("handler %s is not ready: %v, %v", p.name, s, err)
		}
	}
}
