package cgroup

import (
	"path/filepath"
	"reflect"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func TestReadDetailUnified(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, unifiedFiles)
	write(t, dir, map[string]string{"memory.peak": "20000000\n", "memory.low": "1048576\n", "pids.current": "7\n", "pids.max": "max\n"})
	got := test.Value(ReadDetail(Paths{Unified: dir}))(t)
	if got.WorkingSet != known(8388608) || len(got.IO) != 2 {
		t.Errorf("got %+v", got)
	}
	got.Stats, got.IO = Stats{}, nil
	want := Detail{
		CPUUserNano: known(1e9), CPUSystemNano: known(5e8), Periods: known(0), ThrottledPeriods: known(0), ThrottledNano: known(0),
		KernelMemory: known(524288), PeakMemory: known(20000000), MemoryFailures: known(3), OOMKills: known(2), MemoryReservation: known(1048576),
		OwnPageFaults: known(1234), OwnMajorPageFaults: known(5),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestReadDetailV1(t *testing.T) {
	root := t.TempDir()
	p := Paths{V1: map[string]string{}}
	for name, files := range map[string]map[string]string{
		"cpuacct": {"cpuacct.usage": "30\n", "cpuacct.usage_user": "20\n", "cpuacct.usage_sys": "10\n"},
		"cpu":     {"cpu.stat": "nr_periods 4\nnr_throttled 3\nthrottled_time 2000\nwait_sum 1\n"},
		"memory": {
			"memory.usage_in_bytes": "5\n", "memory.stat": "pgfault 6\npgmajfault 7\ntotal_pgfault 8\ntotal_pgmajfault 9\n",
			"memory.oom_control": "oom_kill 1\n", "memory.kmem.usage_in_bytes": "11\n", "memory.max_usage_in_bytes": "12\n",
			"memory.failcnt": "13\n", "memory.soft_limit_in_bytes": "9223372036854771712\n",
		},
		"pids": {"pids.current": "1\n", "pids.max": "100\n"},
	} {
		p.V1[name] = filepath.Join(root, name)
		write(t, p.V1[name], files)
	}
	got := test.Value(ReadDetail(p))(t)
	if got.PageFaults != known(8) || got.CPUUsageNano != known(30) || got.Pids != known(1) {
		t.Errorf("got %+v", got)
	}
	got.Stats = Stats{}
	want := Detail{
		CPUUserNano: known(20), CPUSystemNano: known(10), Periods: known(4), ThrottledPeriods: known(3), ThrottledNano: known(2000),
		KernelMemory: known(11), PeakMemory: known(12), MemoryFailures: known(13), OOMKills: known(1),
		OwnPageFaults: known(6), OwnMajorPageFaults: known(7), PidsLimit: known(100),
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestReadDetailOfNothing(t *testing.T) {
	test.Is(t, test.Err(ReadDetail(Paths{Unified: filepath.Join(t.TempDir(), "gone")})), errdefs.IsNotFound, "a missing cgroup")
}

// A cgroup of this machine with a process in it has exactly the values that HostFacts promises.
func TestRealDetail(t *testing.T) {
	p := makeCgroup(t)
	join(t, p, "", start(t, "sh", "-c", "while :; do :; done").Process.Pid)
	var d Detail
	test.Eventually(t, "CPU time is counted", func() bool {
		d = test.Value(ReadDetail(p))(t)
		return d.CPUUserNano.N > 0
	})
	f := HostFacts()
	if !f.CPUTime || !f.Memory {
		t.Fatalf("this machine counts neither CPU time nor memory: %+v", f)
	}
	for name, told := range map[string]struct{ promised, got bool }{
		"cpu":           {f.CPUTime, d.CPUUserNano.N > 0 && d.CPUSystemNano.Known},
		"quota":         {f.Quota, d.Periods.Known && d.ThrottledPeriods.Known && d.ThrottledNano.Known},
		"memory":        {f.Memory, d.MemoryUsage.Known && d.MemoryFailures.Known && d.OOMKills.Known && d.OwnPageFaults.Known},
		"swap":          {f.Swap, d.SwapUsage.Known},
		"kernel memory": {f.KernelMemory, d.KernelMemory.Known},
		"peak memory":   {f.PeakMemory, d.PeakMemory.Known},
		"pids":          {f.Pids, d.Pids.N > 0},
		"hugetlb":       {f.Hugetlb, len(d.Hugetlb) > 0},
		"hugetlb peak":  {f.HugetlbPeak, len(d.Hugetlb) > 0 && d.Hugetlb[0].Peak.Known},
		"pressure":      {f.Pressure, d.CPUPressure != nil},
	} {
		if told.promised != told.got {
			t.Errorf("%s: promised %v, got %v", name, told.promised, told.got)
		}
	}
}

func TestHugepageSizes(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"hugepages-1048576kB", "hugepages-2048kB", "hugepages-64kB", "something"} {
		write(t, filepath.Join(dir, name), map[string]string{"nr_hugepages": "0"})
	}
	test.EqualLists(t, "the result", readHugepageSizes(dir), []string{"1GB", "2MB", "64KB"})
	if got := readHugepageSizes(filepath.Join(dir, "none")); got != nil {
		t.Errorf("got %v from a missing directory", got)
	}
}

func TestFacts(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "a.slice"), map[string]string{"memory.peak": "", "cpu.pressure": ""})
	write(t, root, map[string]string{"memory.stat": "anon 1\nkernel 2\n"})
	got := hierarchies{unified: root}.facts(ControllerSet{names: []string{"cpu", "hugetlb", "io", "memory", "pids"}, swap: true}, true)
	want := Facts{CPUTime: true, Quota: true, Memory: true, Pids: true, BlockIO: true, Swap: true, KernelMemory: true, PeakMemory: true, Hugetlb: true, Pressure: true}
	if got != want {
		t.Errorf("got %+v", got)
	}
	if got := (hierarchies{unified: t.TempDir()}).facts(ControllerSet{}, true); got != (Facts{CPUTime: true}) {
		t.Errorf("without controllers: %+v", got)
	}
	if got := (hierarchies{}).facts(ControllerSet{names: []string{"cpuacct"}}, false); got != (Facts{CPUTime: true}) {
		t.Errorf("on v1 with cpuacct alone: %+v", got)
	}
}
