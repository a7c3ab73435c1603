package router

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/router/imagestores"
)

// labels are the label keys of each metric, by its name. A metric's values are in the order of the
// keys.
type labels map[string][]string

func labelsOf(r *runtimeapi.ListMetricDescriptorsResponse) labels {
	l := labels{}
	for _, d := range r.GetDescriptors() {
		l[d.GetName()] = d.GetLabelKeys()
	}
	return l
}

// mergeDescriptors merges by name: a metric has one meaning on a node. Its labels are those of the
// first backend that has the metric, then additional ones of the other backends. Pure.
func mergeDescriptors(all []*runtimeapi.ListMetricDescriptorsResponse) *runtimeapi.ListMetricDescriptorsResponse {
	merged := &runtimeapi.ListMetricDescriptorsResponse{}
	place := map[string]int{}
	for _, a := range all {
		addUnknown(merged, a)
		for _, d := range a.GetDescriptors() {
			at, seen := place[d.GetName()]
			if !seen {
				place[d.GetName()] = len(merged.Descriptors)
				merged.Descriptors = append(merged.Descriptors, d)
				continue
			}
			before := merged.Descriptors[at]
			if keys := imagestores.AppendMissing(slices.Clip(before.GetLabelKeys()), d.GetLabelKeys()); len(keys) > len(before.GetLabelKeys()) {
				merged.Descriptors[at] = proto.CloneOf(before)
				merged.Descriptors[at].LabelKeys = keys
			}
		}
	}
	return merged
}

// dialects has the labels of the node's metrics and, by the ID of each backend, the metrics to
// which the backend gives other labels.
type dialects struct {
	node labels
	of   map[string]labels
}

// dialects asks the backends for their descriptors. A backend that fails counts as having the
// node's labels.
func (s stats) dialects(ctx context.Context, backends []Backend) (dialects, error) {
	all, err := askAll(ctx, backends, func(ctx context.Context, b Backend) (*runtimeapi.ListMetricDescriptorsResponse, error) {
		resp, err := b.ListMetricDescriptors(ctx, &runtimeapi.ListMetricDescriptorsRequest{})
		if err != nil && ctx.Err() == nil {
			return nil, nil
		}
		return resp, err
	})
	if err != nil {
		return dialects{}, err
	}
	d := dialects{node: labelsOf(mergeDescriptors(all)), of: map[string]labels{}}
	for i, b := range backends {
		own := labelsOf(all[i])
		for name, keys := range own {
			if slices.Equal(keys, d.node[name]) {
				delete(own, name)
			}
		}
		d.of[b.ID()] = own
	}
	return d, nil
}

// cpuLabel gets the value "total" in metrics of a backend that lacks the label.
const cpuLabel = "cpu"

// translated returns a backend's metrics with the node's labels, or m itself if nothing changes.
func (d dialects) translated(b Backend, m *runtimeapi.ListPodSandboxMetricsResponse) *runtimeapi.ListPodSandboxMetricsResponse {
	own := d.of[b.ID()]
	if len(own) == 0 {
		return m
	}
	m = proto.CloneOf(imagestores.Decoded(m))
	for _, pod := range m.GetPodMetrics() {
		d.translate(own, pod.GetMetrics())
		for _, c := range pod.GetContainerMetrics() {
			d.translate(own, c.GetMetrics())
		}
	}
	return m
}

// translate puts values in the order of the node's labels. A missing label is empty; a missing CPU
// label means the total of all CPUs.
func (d dialects) translate(own labels, metrics []*runtimeapi.Metric) {
	for _, m := range metrics {
		keys, differs := own[m.GetName()]
		if !differs || len(keys) != len(m.GetLabelValues()) {
			continue
		}
		values := make([]string, len(d.node[m.GetName()]))
		for i, key := range d.node[m.GetName()] {
			switch at := slices.Index(keys, key); {
			case at >= 0:
				values[i] = m.GetLabelValues()[at]
			case key == cpuLabel:
				values[i] = "total"
			}
		}
		m.LabelValues = values
	}
}

func (s stats) ListMetricDescriptors(ctx context.Context, req *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	return gather(ctx, s.owners.all(), req, Backend.ListMetricDescriptors, mergeDescriptors)
}

func (s stats) ListPodSandboxMetrics(ctx context.Context, req *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	backends := s.owners.all()
	call := Backend.ListPodSandboxMetrics
	if len(backends) > 1 {
		d, err := s.dialects(ctx, backends)
		if err != nil {
			return nil, err
		}
		call = func(b Backend, ctx context.Context, req *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
			resp, err := b.ListPodSandboxMetrics(ctx, req)
			if err != nil {
				return nil, err
			}
			return d.translated(b, resp), nil
		}
	}
	return gather(ctx, backends, req, call, concatenated)
}

func (s stats) StreamPodSandboxMetrics(req *runtimeapi.StreamPodSandboxMetricsRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse]) error {
	list, err := s.ListPodSandboxMetrics(to.Context(), alike(&runtimeapi.ListPodSandboxMetricsRequest{}, req))
	return stream(list, err, to)
}
