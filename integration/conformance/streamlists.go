package conformance

import (
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var streamListChecks = []check{
	{name: "all or none", run: streamAllOrNone},
	{name: "they have what the lists have, each once", alone: true, run: streamSame},
	{name: "filters", run: streamFilters},
	{name: "nothing is no message", run: streamNothing},
	{name: "images by name", run: streamImagesByName},
}

// received is the content of a stream.
type received struct {
	// ids are the sorted ids of all items.
	ids      []string
	messages int
	empty    int // messages without an item
}

// receive reads a stream to its end.
func receive[M any](items func(M) []string, stream interface{ Recv() (M, error) }, err error) (received, error) {
	var r received
	for err == nil {
		var m M
		if m, err = stream.Recv(); err != nil {
			break
		}
		r.messages++
		ids := items(m)
		if len(ids) == 0 {
			r.empty++
		}
		r.ids = append(r.ids, ids...)
	}
	slices.Sort(r.ids)
	if errors.Is(err, io.EOF) {
		return r, nil
	}
	return r, err
}

// idsOf returns the ids of all items.
func idsOf[T any](items []T, id func(T) string) []string {
	ids := make([]string, 0, len(items))
	for _, item := range items {
		ids = append(ids, id(item))
	}
	return ids
}

// streams has a function for each of the six streams, by name. If a stream can be filtered, it only
// has what belongs to the sandbox or the image; an empty id or name does not filter.
func (n *node) streams(t *testing.T, sandbox, image string) map[string]func() (received, error) {
	t.Helper()
	ctx := call(t)
	pods, containers := &runtimeapi.PodSandboxFilter{Id: sandbox}, &runtimeapi.ContainerFilter{PodSandboxId: sandbox}
	podStats, containerStats := &runtimeapi.PodSandboxStatsFilter{Id: sandbox}, &runtimeapi.ContainerStatsFilter{PodSandboxId: sandbox}
	return map[string]func() (received, error){
		"StreamPodSandboxes": func() (received, error) {
			s, err := n.Runtime.StreamPodSandboxes(ctx, &runtimeapi.StreamPodSandboxesRequest{Filter: pods})
			return receive(func(m *runtimeapi.StreamPodSandboxesResponse) []string {
				return idsOf(m.GetPodSandboxes(), (*runtimeapi.PodSandbox).GetId)
			}, s, err)
		},
		"StreamContainers": func() (received, error) {
			s, err := n.Runtime.StreamContainers(ctx, &runtimeapi.StreamContainersRequest{Filter: containers})
			return receive(func(m *runtimeapi.StreamContainersResponse) []string {
				return idsOf(m.GetContainers(), (*runtimeapi.Container).GetId)
			}, s, err)
		},
		"StreamContainerStats": func() (received, error) {
			s, err := n.Runtime.StreamContainerStats(ctx, &runtimeapi.StreamContainerStatsRequest{Filter: containerStats})
			return receive(func(m *runtimeapi.StreamContainerStatsResponse) []string {
				return idsOf(m.GetContainerStats(), func(s *runtimeapi.ContainerStats) string { return s.GetAttributes().GetId() })
			}, s, err)
		},
		"StreamPodSandboxStats": func() (received, error) {
			s, err := n.Runtime.StreamPodSandboxStats(ctx, &runtimeapi.StreamPodSandboxStatsRequest{Filter: podStats})
			return receive(func(m *runtimeapi.StreamPodSandboxStatsResponse) []string {
				return idsOf(m.GetPodSandboxStats(), func(s *runtimeapi.PodSandboxStats) string { return s.GetAttributes().GetId() })
			}, s, err)
		},
		"StreamPodSandboxMetrics": func() (received, error) {
			s, err := n.Runtime.StreamPodSandboxMetrics(ctx, &runtimeapi.StreamPodSandboxMetricsRequest{})
			return receive(func(m *runtimeapi.StreamPodSandboxMetricsResponse) []string {
				return idsOf(m.GetPodSandboxMetrics(), (*runtimeapi.PodSandboxMetrics).GetPodSandboxId)
			}, s, err)
		},
		"StreamImages": func() (received, error) {
			s, err := n.Images.StreamImages(ctx, &runtimeapi.StreamImagesRequest{
				Filter: &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: image}},
			})
			return receive(func(m *runtimeapi.StreamImagesResponse) []string {
				return idsOf(m.GetImages(), (*runtimeapi.Image).GetId)
			}, s, err)
		},
	}
}

// read reads one of the streams; if the endpoint does not have it, the check is skipped.
func (n *node) read(t *testing.T, name string, read func() (received, error)) received {
	t.Helper()
	r, err := read()
	if status.Code(err) == codes.Unimplemented {
		t.Skip("the endpoint answers Unimplemented to " + name)
	}
	must(t, err, name)
	if r.empty > 0 {
		t.Errorf("%s: %d messages without an item", name, r.empty)
	}
	if len(slices.Compact(slices.Clone(r.ids))) != len(r.ids) {
		t.Errorf("%s: an item was sent twice: %v", name, r.ids)
	}
	return r
}

// streamAllOrNone checks that an endpoint has all streams or none: after one Unimplemented, a
// kubelet no longer calls any of them.
func streamAllOrNone(t *testing.T, n *node) {
	n.pod(t).start(t, forever())
	answers := map[codes.Code][]string{}
	all := n.streams(t, "", "")
	for name, read := range all {
		_, err := read()
		answers[status.Code(err)] = append(answers[status.Code(err)], name)
	}
	if len(answers[codes.OK]) != len(all) && len(answers[codes.Unimplemented]) != len(all) {
		t.Errorf("the six streams answer differently: %v", answers)
	}
}

func streamSame(t *testing.T, n *node) {
	p := n.pod(t)
	running, ended := p.start(t, forever()), p.start(t, sh("exit 0"))
	ended.waitExit(t)
	n.pod(t)
	ctx := call(t)
	pods, err := n.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	must(t, err, "ListPodSandbox")
	containers, err := n.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	must(t, err, "ListContainers")
	images, err := n.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
	must(t, err, "ListImages")
	podStats, err := n.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	must(t, err, "ListPodSandboxStats")
	stats, err := n.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	must(t, err, "ListContainerStats")
	metrics, err := n.Runtime.ListPodSandboxMetrics(ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
	must(t, err, "ListPodSandboxMetrics")
	want := map[string][]string{
		"StreamPodSandboxes":      idsOf(pods.GetItems(), (*runtimeapi.PodSandbox).GetId),
		"StreamContainers":        idsOf(containers.GetContainers(), (*runtimeapi.Container).GetId),
		"StreamImages":            idsOf(images.GetImages(), (*runtimeapi.Image).GetId),
		"StreamPodSandboxStats":   idsOf(podStats.GetStats(), func(s *runtimeapi.PodSandboxStats) string { return s.GetAttributes().GetId() }),
		"StreamContainerStats":    idsOf(stats.GetStats(), func(s *runtimeapi.ContainerStats) string { return s.GetAttributes().GetId() }),
		"StreamPodSandboxMetrics": idsOf(metrics.GetPodMetrics(), (*runtimeapi.PodSandboxMetrics).GetPodSandboxId),
	}
	if !slices.Contains(want["StreamContainers"], running.ID) || !slices.Contains(want["StreamContainers"], ended.ID) {
		t.Fatalf("the list lacks a container: %v", want["StreamContainers"])
	}
	for name, read := range n.streams(t, "", "") {
		slices.Sort(want[name])
		if got := n.read(t, name, read); !slices.Equal(got.ids, want[name]) {
			t.Errorf("%s has %v, the list has %v", name, got.ids, want[name])
		}
	}
}

func streamFilters(t *testing.T, n *node) {
	p := n.pod(t)
	a, b := p.start(t, forever()), p.start(t, forever())
	n.pod(t).start(t, forever())
	inPod := []string{a.ID, b.ID}
	slices.Sort(inPod)
	want := map[string][]string{
		"StreamPodSandboxes": {p.ID}, "StreamPodSandboxStats": {p.ID}, "StreamContainers": inPod, "StreamContainerStats": inPod,
	}
	for name, read := range n.streams(t, p.ID, "") {
		if want[name] == nil {
			continue // it cannot be filtered by a pod
		}
		if got := n.read(t, name, read); !slices.Equal(got.ids, want[name]) {
			t.Errorf("%s has %v, want %v", name, got.ids, want[name])
		}
	}
}

func streamNothing(t *testing.T, n *node) {
	for name, read := range n.streams(t, "f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f", "") {
		if name == "StreamPodSandboxMetrics" || name == "StreamImages" {
			continue // it cannot be filtered by a pod
		}
		if got := n.read(t, name, read); got.messages != 0 {
			t.Errorf("%s sent %d messages of %v", name, got.messages, got.ids)
		}
	}
}

func streamImagesByName(t *testing.T, n *node) {
	const name = "StreamImages"
	image := n.pull(t, n.Image.Other)
	if got := n.read(t, name, n.streams(t, "", n.Image.Other)[name]); !slices.Equal(got.ids, []string{image}) {
		t.Errorf("%s of %s has %v, want %s", name, n.Image.Other, got.ids, image)
	}
	if got := n.read(t, name, n.streams(t, "", n.Image.Absent)[name]); got.messages != 0 {
		t.Errorf("%s of an image that is not there sent %d messages of %v", name, got.messages, got.ids)
	}
}
