package router

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func described(name string, keys ...string) *runtimeapi.ListMetricDescriptorsResponse {
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: []*runtimeapi.MetricDescriptor{{Name: name, LabelKeys: keys}}}
}

func TestMetricsOfAllBackendsHaveTheSameLabels(t *testing.T) {
	for name, tc := range map[string]struct {
		node, other []string
		want        []string // the merged keys
		values      []string // those of the other backend, translated; untranslated, they equal its keys
	}{
		"the same":        {[]string{"pod", "id"}, []string{"pod", "id"}, []string{"pod", "id"}, []string{"pod", "id"}},
		"another order":   {[]string{"pod", "id"}, []string{"id", "pod"}, []string{"pod", "id"}, []string{"pod", "id"}},
		"one less":        {[]string{"pod", "id", "scope"}, []string{"pod", "id"}, []string{"pod", "id", "scope"}, []string{"pod", "id", ""}},
		"without a CPU":   {[]string{"id", "cpu"}, []string{"id"}, []string{"id", "cpu"}, []string{"id", "total"}},
		"one more":        {[]string{"pod"}, []string{"scope", "pod"}, []string{"pod", "scope"}, []string{"pod", "scope"}},
		"no common label": {[]string{"pod"}, []string{"id"}, []string{"pod", "id"}, []string{"", "id"}},
	} {
		t.Run(name, func(t *testing.T) {
			first := described("m", tc.node...)
			merged := mergeDescriptors([]*runtimeapi.ListMetricDescriptorsResponse{first, described("m", tc.other...), nil})
			if got := merged.GetDescriptors(); len(got) != 1 || !slices.Equal(got[0].GetLabelKeys(), tc.want) {
				t.Errorf("the merged descriptors are %v, want %v", got, tc.want)
			}
			if !slices.Equal(first.GetDescriptors()[0].GetLabelKeys(), tc.node) {
				t.Errorf("the first backend's descriptors were changed to %v", first)
			}
			d := dialects{node: labelsOf(merged), of: map[string]labels{}}
			metrics := []*runtimeapi.Metric{
				{Name: "m", LabelValues: slices.Clone(tc.other)},
				{Name: "undeclared", LabelValues: []string{"a"}},
				{Name: "m", LabelValues: []string{"a", "lie", "about", "labels"}},
			}
			d.translate(labelsOf(described("m", tc.other...)), metrics)
			test.EqualLists(t, "values", metrics[0].GetLabelValues(), tc.values)
			if len(metrics[1].GetLabelValues()) != 1 || len(metrics[2].GetLabelValues()) != 4 {
				t.Errorf("metrics that cannot be translated were changed: %v", metrics[1:])
			}
		})
	}
}

// namedBackend is a backend that only has a name.
type namedBackend struct {
	Backend
	name string
}

func (b namedBackend) ID() string { return b.name }

// Metrics that are not decoded yet are decoded only if they must be changed.
func TestMetricsThatCameUnreadAreTranslated(t *testing.T) {
	said := &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: []*runtimeapi.PodSandboxMetrics{{
		PodSandboxId: "p", Metrics: []*runtimeapi.Metric{{Name: "m", LabelValues: []string{"1"}}},
		ContainerMetrics: []*runtimeapi.ContainerMetrics{{ContainerId: "c", Metrics: []*runtimeapi.Metric{{Name: "m", LabelValues: []string{"2"}}}}},
	}}}
	encoded := test.Value(proto.Marshal(said))(t)
	unread := &runtimeapi.ListPodSandboxMetricsResponse{}
	unread.ProtoReflect().SetUnknown(encoded)
	d := dialects{node: labels{"m": {"pod", "id"}}, of: map[string]labels{"other": {"m": {"id"}}}}
	if got := d.translated(namedBackend{name: "alike"}, unread); got != unread {
		t.Errorf("metrics that need no translation were replaced by %v", got)
	}
	got := d.translated(namedBackend{name: "other"}, unread).GetPodMetrics()
	if len(got) != 1 || !slices.Equal(got[0].GetMetrics()[0].GetLabelValues(), []string{"", "1"}) ||
		!slices.Equal(got[0].GetContainerMetrics()[0].GetMetrics()[0].GetLabelValues(), []string{"", "2"}) {
		t.Errorf("translated to %v", got)
	}
}
