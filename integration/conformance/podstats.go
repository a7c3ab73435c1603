package conformance

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var podStatsChecks = []check{
	{name: "of one pod", needs: []Ability{Stats}, run: podStatsOfOne},
	{name: "cpu time of a pod grows with work", needs: []Ability{Stats}, run: podStatsGrow},
	{name: "network traffic is counted", needs: []Ability{Stats}, run: podStatsOfNetwork},
	{name: "the default interface is none of the others", needs: []Ability{Stats}, run: podStatsOfInterfaces},
	{name: "list and filters", needs: []Ability{Stats}, run: podStatsList},
	{name: "of pods that are not ready", needs: []Ability{Stats}, run: podStatsNotReady},
	{name: "of a pod on the host's network", needs: []Ability{Stats, HostNetwork}, berth: true, run: podStatsOfHostNetwork},
	{name: "of pods that share a cgroup parent", needs: []Ability{Stats, CgroupPerCtr}, berth: true, run: podStatsOfSharedParent},
}

func (p *pod) stats(t *testing.T) *runtimeapi.PodSandboxStats {
	t.Helper()
	r, err := p.Runtime.PodSandboxStats(call(t), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: p.ID})
	must(t, err, "PodSandboxStats")
	return r.GetStats()
}

// wholePodStats checks the fields that a kubelet needs or shows unchanged.
func wholePodStats(t *testing.T, p *pod, s *runtimeapi.PodSandboxStats) {
	t.Helper()
	a := s.GetAttributes()
	if a.GetId() != p.ID || a.GetMetadata().GetUid() != p.Config.GetMetadata().GetUid() {
		t.Errorf("attributes are %v", a)
	}
	sameMap(t, "labels of pod stats", a.GetLabels(), p.Config.GetLabels())
	l := s.GetLinux()
	if l == nil {
		t.Fatalf("no linux statistics: the kubelet would crash")
	}
	if l.GetCpu().GetTimestamp() == 0 || l.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 {
		t.Errorf("cpu is %v", l.GetCpu())
	}
	if l.GetMemory().GetTimestamp() == 0 || l.GetMemory().GetWorkingSetBytes().GetValue() == 0 || l.GetMemory().GetUsageBytes().GetValue() == 0 {
		t.Errorf("memory is %v", l.GetMemory())
	}
	if l.GetProcess().GetTimestamp() == 0 || l.GetProcess().GetProcessCount().GetValue() == 0 {
		t.Errorf("processes are %v", l.GetProcess())
	}
	wholeNetwork(t, l.GetNetwork())
}

func wholeNetwork(t *testing.T, u *runtimeapi.NetworkUsage) {
	t.Helper()
	if u.GetTimestamp() == 0 || u.GetDefaultInterface().GetName() != "eth0" {
		t.Errorf("network is %v", u)
	}
	for _, i := range append(u.GetInterfaces(), u.GetDefaultInterface()) {
		if i.GetRxBytes() == nil || i.GetRxErrors() == nil || i.GetTxBytes() == nil || i.GetTxErrors() == nil {
			t.Errorf("interface %v", i)
		}
	}
}

func podStatsOfOne(t *testing.T, n *node) {
	p := n.pod(t)
	a, b := p.start(t, forever()), p.start(t, forever())
	p.start(t, sh("exit 0")).waitExit(t)
	a.exec(t, "true")
	var s *runtimeapi.PodSandboxStats
	n.eventually(t, "pod statistics have both containers with their writable layers", func() bool {
		s = p.stats(t)
		of := containersOf(s)
		return of[a.ID].GetWritableLayer().GetTimestamp() > 0 && of[b.ID].GetWritableLayer().GetTimestamp() > 0
	})
	wholePodStats(t, p, s)
	of := containersOf(s)
	wholeStats(t, a, of[a.ID])
	wholeStats(t, b, of[b.ID])
	for id, c := range of {
		if id != a.ID && id != b.ID && c.GetMemory().GetWorkingSetBytes().GetValue() != 0 {
			t.Errorf("container %s, which has ended, uses memory: %v", id, c)
		}
	}
}

func containersOf(s *runtimeapi.PodSandboxStats) map[string]*runtimeapi.ContainerStats {
	of := map[string]*runtimeapi.ContainerStats{}
	for _, c := range s.GetLinux().GetContainers() {
		of[c.GetAttributes().GetId()] = c
	}
	return of
}

func podStatsGrow(t *testing.T, n *node) {
	p := n.pod(t)
	p.start(t, sh("while :; do :; done"))
	first := p.stats(t).GetLinux().GetCpu()
	n.eventually(t, "cpu time of the pod grows, and so does its time stamp", func() bool {
		next := p.stats(t).GetLinux().GetCpu()
		return next.GetUsageCoreNanoSeconds().GetValue() > first.GetUsageCoreNanoSeconds().GetValue()+50e6 && next.GetTimestamp() > first.GetTimestamp()
	})
	n.eventually(t, "a loop without end uses a CPU", func() bool {
		return p.stats(t).GetLinux().GetCpu().GetUsageNanoCores().GetValue() > 50e6
	})
}

func podStatsOfNetwork(t *testing.T, n *node) {
	const size = 1 << 20
	server, client := n.pod(t), n.pod(t)
	server.start(t, sh("head -c 1048576 /dev/zero > /tmp/zeros; exec httpd -f -p 8080 -h /tmp"))
	c := client.start(t, forever())
	before := client.stats(t).GetLinux().GetNetwork().GetDefaultInterface().GetRxBytes().GetValue()
	url := "http://" + server.status(t).GetNetwork().GetIp() + ":8080/zeros"
	n.eventually(t, "one pod fetches from the other", func() bool {
		r, err := c.execSync(t, execBound, "sh", "-c", "wget -q -O - "+url+" | wc -c")
		return err == nil && r.GetExitCode() == 0 && string(r.GetStdout()) == "1048576\n"
	})
	n.eventually(t, "the traffic is in the statistics of both", func() bool {
		got, sent := client.stats(t).GetLinux().GetNetwork().GetDefaultInterface(), server.stats(t).GetLinux().GetNetwork().GetDefaultInterface()
		return got.GetRxBytes().GetValue() >= before+size && sent.GetTxBytes().GetValue() >= size
	})
}

func podStatsOfInterfaces(t *testing.T, n *node) {
	u := n.pod(t).stats(t).GetLinux().GetNetwork()
	for _, i := range u.GetInterfaces() {
		if i.GetName() == u.GetDefaultInterface().GetName() {
			t.Errorf("the default interface is listed twice: %v", u)
		}
	}
}

func (n *node) listPodStats(t *testing.T, f *runtimeapi.PodSandboxStatsFilter) map[string]*runtimeapi.PodSandboxStats {
	t.Helper()
	r, err := n.Runtime.ListPodSandboxStats(call(t), &runtimeapi.ListPodSandboxStatsRequest{Filter: f})
	must(t, err, "ListPodSandboxStats")
	out := map[string]*runtimeapi.PodSandboxStats{}
	for _, s := range r.GetStats() {
		if s.GetLinux() == nil || s.GetAttributes().GetMetadata() == nil {
			t.Errorf("an item has no linux statistics or no metadata: %v", s)
		}
		out[s.GetAttributes().GetId()] = s
	}
	return out
}

func podStatsList(t *testing.T, n *node) {
	a, b := n.pod(t), n.pod(t)
	a.start(t, forever())
	b.start(t, forever())
	all := n.listPodStats(t, nil)
	for _, p := range []*pod{a, b} {
		if all[p.ID] == nil {
			t.Fatalf("pod %s is not in the list", p.ID)
		}
		wholePodStats(t, p, all[p.ID])
	}
	for name, f := range map[string]struct {
		filter *runtimeapi.PodSandboxStatsFilter
		want   *pod
	}{
		"id":      {&runtimeapi.PodSandboxStatsFilter{Id: b.ID}, b},
		"label":   {&runtimeapi.PodSandboxStatsFilter{LabelSelector: a.Config.GetLabels()}, a},
		"neither": {&runtimeapi.PodSandboxStatsFilter{Id: b.ID, LabelSelector: a.Config.GetLabels()}, nil},
		"unknown": {&runtimeapi.PodSandboxStatsFilter{Id: "f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f00f"}, nil},
	} {
		got := n.listPodStats(t, f.filter)
		if f.want == nil && len(got) != 0 || f.want != nil && (len(got) != 1 || got[f.want.ID] == nil) {
			t.Errorf("%s: got %d pods", name, len(got))
		}
	}
}

// podStatsNotReady checks that a stopped pod is not listed, or is listed with no memory.
func podStatsNotReady(t *testing.T, n *node) {
	p := n.pod(t)
	p.start(t, forever())
	p.stop(t)
	if s := n.listPodStats(t, nil)[p.ID]; s.GetLinux().GetMemory().GetWorkingSetBytes().GetValue() != 0 {
		t.Errorf("a stopped pod uses memory: %v", s)
	}
	_, err := n.Runtime.PodSandboxStats(call(t), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: p.ID})
	mustFail(t, err, "PodSandboxStats of a stopped pod")
	p.remove(t)
	_, err = n.Runtime.PodSandboxStats(call(t), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: p.ID})
	mustFail(t, err, "PodSandboxStats of a removed pod")
}

// podStatsOfHostNetwork checks that the traffic of the host's interfaces is not counted for the
// pod.
func podStatsOfHostNetwork(t *testing.T, n *node) {
	p := n.pod(t, hostNetwork)
	p.start(t, forever())
	l := p.stats(t).GetLinux()
	if l.GetNetwork() != nil {
		t.Errorf("network is %v", l.GetNetwork())
	}
	if l.GetMemory().GetWorkingSetBytes().GetValue() == 0 {
		t.Errorf("memory is %v", l.GetMemory())
	}
}

// podStatsOfSharedParent has two pods with one parent cgroup. The busy pod's CPU time must not be
// counted for the idle pod.
func podStatsOfSharedParent(t *testing.T, n *node) {
	busy := n.pod(t)
	same := func(c *runtimeapi.PodSandboxConfig) { c.Linux.CgroupParent = busy.Config.GetLinux().GetCgroupParent() }
	idle := n.pod(t, same)
	busy.start(t, sh("while :; do :; done"))
	c := idle.start(t, forever())
	n.eventually(t, "the busy pod has used a second", func() bool {
		return busy.stats(t).GetLinux().GetCpu().GetUsageCoreNanoSeconds().GetValue() > 1e9
	})
	s := idle.stats(t).GetLinux()
	if got := s.GetCpu().GetUsageCoreNanoSeconds().GetValue(); got == 0 || got > 8e8 {
		t.Errorf("the idle pod used %d ns", got)
	}
	if pod, one := s.GetMemory().GetUsageBytes().GetValue(), containersOf(idle.stats(t))[c.ID].GetMemory().GetUsageBytes().GetValue(); pod < one/2 {
		t.Errorf("the pod uses %d bytes, its only container %d", pod, one)
	}
}
