package conformance

import (
	"os"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var statsChecks = []check{
	{name: "of one container", needs: []Ability{Stats}, run: statsOfOne},
	{name: "cpu time grows with work", needs: []Ability{Stats}, run: statsGrow},
	{name: "rate of cpu time", needs: []Ability{Stats}, berth: true, run: statsRate},
	{name: "list and filters", needs: []Ability{Stats}, run: statsList},
	{name: "of containers that do not run", needs: []Ability{Stats}, run: statsNotRunning},
}

func (c *container) stats(t *testing.T) *runtimeapi.ContainerStats {
	t.Helper()
	r, err := c.Runtime.ContainerStats(call(t), &runtimeapi.ContainerStatsRequest{ContainerId: c.ID})
	must(t, err, "ContainerStats")
	return r.GetStats()
}

// wholeStats checks the fields that a kubelet needs.
func wholeStats(t *testing.T, c *container, s *runtimeapi.ContainerStats) {
	t.Helper()
	a := s.GetAttributes()
	if a.GetId() != c.ID || a.GetMetadata().GetName() != c.Config.GetMetadata().GetName() {
		t.Errorf("attributes are %v", a)
	}
	sameMap(t, "labels of stats", a.GetLabels(), c.Config.GetLabels())
	if s.GetCpu().GetTimestamp() == 0 || s.GetCpu().GetUsageCoreNanoSeconds() == nil {
		t.Errorf("cpu is %v", s.GetCpu())
	}
	m := s.GetMemory()
	if m.GetTimestamp() == 0 || m.GetWorkingSetBytes().GetValue() == 0 {
		t.Errorf("memory is %v", m)
	}
	if fs := s.GetWritableLayer(); fs.GetTimestamp() == 0 || fs.GetUsedBytes() == nil {
		t.Errorf("writable layer is %v", fs)
	} else if _, err := os.Stat(fs.GetFsId().GetMountpoint()); err != nil {
		t.Errorf("mount point of the writable layer: %v", err)
	}
}

func statsOfOne(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	c.exec(t, "true")
	n.eventually(t, "statistics have a writable layer", func() bool { return c.stats(t).GetWritableLayer() != nil })
	wholeStats(t, c, c.stats(t))
}

func statsGrow(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("while :; do :; done"))
	first := c.stats(t)
	n.eventually(t, "cpu time grows and so does its time stamp", func() bool {
		next := c.stats(t)
		return next.GetCpu().GetUsageCoreNanoSeconds().GetValue() > first.GetCpu().GetUsageCoreNanoSeconds().GetValue()+50e6 &&
			next.GetCpu().GetTimestamp() > first.GetCpu().GetTimestamp()
	})
}

// statsRate checks the rate of CPU time. Without it, a kubelet needs ten seconds to compute the
// rate itself.
func statsRate(t *testing.T, n *node) {
	c := n.pod(t).start(t, sh("while :; do :; done"))
	n.eventually(t, "a loop without end uses a CPU", func() bool {
		return c.stats(t).GetCpu().GetUsageNanoCores().GetValue() > 50e6
	})
}

func (n *node) listStats(t *testing.T, f *runtimeapi.ContainerStatsFilter) map[string]*runtimeapi.ContainerStats {
	t.Helper()
	r, err := n.Runtime.ListContainerStats(call(t), &runtimeapi.ListContainerStatsRequest{Filter: f})
	must(t, err, "ListContainerStats")
	out := map[string]*runtimeapi.ContainerStats{}
	for _, s := range r.GetStats() {
		if s.GetAttributes().GetMetadata() == nil {
			t.Errorf("an item has no metadata: %v", s)
		}
		out[s.GetAttributes().GetId()] = s
	}
	return out
}

func statsList(t *testing.T, n *node) {
	p, other := n.pod(t), n.pod(t)
	a, b, c := p.start(t, forever()), p.start(t, forever()), other.start(t, forever())
	all := n.listStats(t, nil)
	for _, want := range []*container{a, b, c} {
		if all[want.ID] == nil {
			t.Errorf("container %s is not in the list", want.ID)
		}
	}
	for name, f := range map[string]struct {
		filter *runtimeapi.ContainerStatsFilter
		want   []*container
	}{
		"id":      {&runtimeapi.ContainerStatsFilter{Id: b.ID}, []*container{b}},
		"sandbox": {&runtimeapi.ContainerStatsFilter{PodSandboxId: p.ID}, []*container{a, b}},
		"label":   {&runtimeapi.ContainerStatsFilter{LabelSelector: c.Config.GetLabels()}, []*container{c}},
		"none":    {&runtimeapi.ContainerStatsFilter{Id: c.ID, PodSandboxId: p.ID}, nil},
	} {
		got := n.listStats(t, f.filter)
		if len(got) != len(f.want) {
			t.Errorf("%s: %d items, want %d", name, len(got), len(f.want))
		}
		for _, w := range f.want {
			if got[w.ID] == nil {
				t.Errorf("%s: container %s is missing", name, w.ID)
			}
		}
	}
}

// statsNotRunning checks that containers that do not run are not listed, or are listed with no
// memory; an error would fail the whole list.
func statsNotRunning(t *testing.T, n *node) {
	p := n.pod(t)
	created := p.create(t, forever())
	ended := p.start(t, sh("exit 0"))
	ended.waitExit(t)
	running := p.start(t, forever())
	got := n.listStats(t, &runtimeapi.ContainerStatsFilter{PodSandboxId: p.ID})
	if got[running.ID] == nil {
		t.Error("the running container is missing")
	}
	for what, c := range map[string]*container{"created": created, "ended": ended} {
		if s := got[c.ID]; s.GetMemory().GetWorkingSetBytes().GetValue() != 0 {
			t.Errorf("the %s container uses memory: %v", what, s)
		}
	}
}
