package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var metricChecks = []check{
	{name: "descriptors are well formed and stay", run: descriptorsStay},
	{name: "every metric is declared", run: metricsDeclared},
	{name: "a container has what dashboards ask for", needs: []Ability{CgroupPerCtr}, run: metricsOfContainer},
	{name: "limits are told", needs: []Ability{CgroupPerCtr}, run: metricsOfLimits},
	{name: "cpu time and traffic grow", run: metricsGrow},
	{name: "pods that are not ready have none", run: metricsNotReady},
	{name: "the pod as a whole", berth: true, run: metricsOfPod},
	{name: "a pod without a cgroup of its own", berth: true, run: metricsOfParentlessPod},
}

// subjectLabels are the labels that all metrics have, in this order.
var subjectLabels = []string{"pod", "namespace", "container", "id", "image"}

// descriptors skips the check where the endpoint has no metrics.
func (n *node) descriptors(t *testing.T) map[string]*runtimeapi.MetricDescriptor {
	t.Helper()
	r, err := n.Runtime.ListMetricDescriptors(call(t), &runtimeapi.ListMetricDescriptorsRequest{})
	if status.Code(err) == codes.Unimplemented {
		t.Skip("the endpoint answers Unimplemented to ListMetricDescriptors")
	}
	must(t, err, "ListMetricDescriptors")
	all := map[string]*runtimeapi.MetricDescriptor{}
	for _, d := range r.GetDescriptors() {
		if all[d.GetName()] != nil {
			t.Errorf("%s is declared twice", d.GetName())
		}
		all[d.GetName()] = d
	}
	return all
}

// metricsOf returns the metrics of the pod and of one of its containers.
func (p *pod) metricsOf(t *testing.T, c *container) (ofPod, ofContainer []*runtimeapi.Metric) {
	t.Helper()
	r, err := p.Runtime.ListPodSandboxMetrics(call(t), &runtimeapi.ListPodSandboxMetricsRequest{})
	must(t, err, "ListPodSandboxMetrics")
	for _, m := range r.GetPodMetrics() {
		if m.GetPodSandboxId() != p.ID {
			continue
		}
		for _, of := range m.GetContainerMetrics() {
			if of.GetContainerId() == c.ID {
				ofContainer = of.GetMetrics()
			}
		}
		return m.GetMetrics(), ofContainer
	}
	return nil, nil
}

// metric returns the value of the first metric with that name. labels are the values after those of
// subjectLabels.
func metric(all []*runtimeapi.Metric, name string, labels ...string) (uint64, bool) {
	for _, m := range all {
		if m.GetName() == name && slices.Equal(m.GetLabelValues()[min(len(subjectLabels), len(m.GetLabelValues())):], labels) {
			return m.GetValue().GetValue(), true
		}
	}
	return 0, false
}

func descriptorsStay(t *testing.T, n *node) {
	first := n.descriptors(t)
	for name, d := range first {
		if !strings.HasPrefix(name, "container_") || d.GetHelp() == "" {
			t.Errorf("descriptor %v", d)
		}
		if keys := d.GetLabelKeys(); len(keys) < len(subjectLabels) || !slices.Equal(keys[:len(subjectLabels)], subjectLabels) {
			t.Errorf("%s has the labels %q", name, keys)
		}
	}
	second := n.descriptors(t)
	if len(first) == 0 || len(first) != len(second) {
		t.Errorf("%d descriptors, then %d", len(first), len(second))
	}
	for name := range first {
		if second[name] == nil {
			t.Errorf("%s is not declared any more", name)
		}
	}
}

// metricsDeclared checks what the kubelet needs: it drops a metric that is not declared, and
// crashes on one without a value.
func metricsDeclared(t *testing.T, n *node) {
	declared := n.descriptors(t)
	p := n.pod(t)
	c := p.start(t, forever())
	ofPod, ofContainer := p.metricsOf(t, c)
	if len(ofPod) == 0 || len(ofContainer) == 0 {
		t.Errorf("%d metrics of the pod, %d of its container", len(ofPod), len(ofContainer))
	}
	for _, m := range append(ofPod, ofContainer...) {
		d := declared[m.GetName()]
		if d == nil || len(d.GetLabelKeys()) != len(m.GetLabelValues()) || m.GetValue() == nil {
			t.Errorf("metric %v is declared as %v", m, d)
		}
	}
	for _, m := range ofContainer {
		want := []string{p.Config.GetMetadata().GetName(), p.Config.GetMetadata().GetNamespace(), c.Config.GetMetadata().GetName()}
		if got := m.GetLabelValues(); len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("%s is about %q, want %q", m.GetName(), got, want)
		}
	}
}

// dashboards are the metrics that common dashboards and alerts use.
var dashboards = []string{
	"container_cpu_usage_seconds_total", "container_cpu_user_seconds_total", "container_cpu_system_seconds_total",
	"container_cpu_cfs_periods_total", "container_cpu_cfs_throttled_periods_total", "container_cpu_cfs_throttled_seconds_total",
	"container_memory_usage_bytes", "container_memory_working_set_bytes", "container_memory_rss", "container_memory_cache",
	"container_memory_mapped_file", "container_memory_failcnt", "container_memory_failures_total", "container_oom_events_total",
	"container_memory_total_active_file_bytes", "container_memory_total_inactive_file_bytes",
	"container_processes", "container_threads", "container_threads_max", "container_file_descriptors", "container_sockets",
	"container_fs_usage_bytes", "container_fs_limit_bytes", "container_fs_inodes_total", "container_fs_inodes_free",
	"container_spec_cpu_period", "container_spec_cpu_shares", "container_spec_memory_limit_bytes",
	"container_last_seen", "container_start_time_seconds",
}

// limited sets every kind of limit that has a metric.
func limited(c *runtimeapi.ContainerConfig) {
	c.Linux.Resources = &runtimeapi.LinuxContainerResources{
		CpuPeriod: 50000, CpuQuota: 20000, CpuShares: 512, MemoryLimitInBytes: 64 << 20, MemorySwapLimitInBytes: 64 << 20,
	}
}

func metricsOfContainer(t *testing.T, n *node) {
	declared := n.descriptors(t)
	p := n.pod(t)
	c := p.start(t, forever(), limited)
	c.exec(t, "sh", "-c", "echo something > /tmp/written")
	var missing []string
	n.eventually(t, "the container has all metrics", func() bool {
		_, all := p.metricsOf(t, c)
		missing = nil
		for _, name := range dashboards {
			if !slices.ContainsFunc(all, func(m *runtimeapi.Metric) bool { return m.GetName() == name }) {
				missing = append(missing, name)
			}
		}
		return len(missing) == 0
	})
	for _, name := range missing {
		t.Errorf("%s is missing (declared: %v)", name, declared[name] != nil)
	}
	_, all := p.metricsOf(t, c)
	started, _ := metric(all, "container_start_time_seconds")
	seen, _ := metric(all, "container_last_seen")
	if now := uint64(time.Now().Unix()); started == 0 || started > seen || seen > now || seen < now-60 {
		t.Errorf("started at %d, seen at %d, now it is %d", started, seen, now)
	}
}

func metricsOfLimits(t *testing.T, n *node) {
	n.descriptors(t)
	p := n.pod(t)
	c := p.start(t, forever(), limited)
	_, all := p.metricsOf(t, c)
	for name, want := range map[string]uint64{
		"container_spec_cpu_period": 50000, "container_spec_cpu_shares": 512, "container_spec_memory_limit_bytes": 64 << 20,
	} {
		if got, ok := metric(all, name); !ok || got != want {
			t.Errorf("%s is %d, %v; want %d", name, got, ok, want)
		}
	}
}

func metricsGrow(t *testing.T, n *node) {
	n.descriptors(t)
	p := n.pod(t)
	c := p.start(t, sh("while :; do :; done"))
	before, _ := p.metricsOf(t, c)
	was, ok := metric(before, "container_network_receive_bytes_total", "eth0")
	if !ok {
		t.Errorf("the pod has no metric of its network: %v", before)
	}
	address := p.status(t).GetNetwork().GetIp()
	n.pod(t).start(t, sh("while :; do wget -q -T 1 -O /dev/null http://"+address+":8080/; done"))
	n.eventually(t, "a second of CPU time is counted, and traffic", func() bool {
		ofPod, ofContainer := p.metricsOf(t, c)
		got, _ := metric(ofPod, "container_network_receive_bytes_total", "eth0")
		return got > was && slices.ContainsFunc(ofContainer, func(m *runtimeapi.Metric) bool {
			return m.GetName() == "container_cpu_usage_seconds_total" && m.GetValue().GetValue() >= 1 && m.GetMetricType() == runtimeapi.MetricType_COUNTER
		})
	})
}

func metricsNotReady(t *testing.T, n *node) {
	n.descriptors(t)
	p := n.pod(t)
	c := p.start(t, forever())
	p.stop(t)
	if ofPod, ofContainer := p.metricsOf(t, c); len(ofPod)+len(ofContainer) > 0 {
		t.Errorf("a stopped pod has the metrics %v, %v", ofPod, ofContainer)
	}
}

// metricsOfPod checks the metrics of a pod's cgroup, which have no container name, as in cAdvisor:
// only these include what a runtime uses outside of the containers.
func metricsOfPod(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever())
	wholePod(t, p, c)
}

// metricsOfParentlessPod is for pods like those of crictl, which all have the same parent cgroup.
func metricsOfParentlessPod(t *testing.T, n *node) {
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = "" })
	wholePod(t, p, p.start(t, forever()))
}

func wholePod(t *testing.T, p *pod, c *container) {
	t.Helper()
	all, _ := p.metricsOf(t, c)
	for _, name := range []string{"container_memory_working_set_bytes", "container_memory_usage_bytes", "container_processes"} {
		if v, ok := metric(all, name); !ok || v == 0 {
			t.Errorf("%s of the pod is %d, %v", name, v, ok)
		}
	}
	for _, m := range all {
		if labels := m.GetLabelValues(); labels[2] != "" || labels[3] != p.ID || labels[4] != "" {
			t.Errorf("%s of the pod is about %q", m.GetName(), labels)
		}
	}
}
