package engine

import (
	"fmt"
	"time"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/network"
)

// fromMetrics reads what the Task API sends.
func fromMetrics(m any) (cgroup.Stats, error) {
	switch m := m.(type) {
	case *cgroup1.Metrics:
		return fromV1(m), nil
	case *cgroup2.Metrics:
		return fromUnified(m), nil
	}
	return cgroup.Stats{}, fmt.Errorf("statistics of an unknown kind %T: %w", m, errdefs.ErrNotImplemented)
}

func known(v uint64) cgroup.Value { return cgroup.Value{Known: true, N: v} }

// limit takes the largest numbers, which stand for none, for not known.
func limit(v uint64) cgroup.Value { return cgroup.Value{Known: v > 0 && v < 1<<62, N: v} }

func fromV1(m *cgroup1.Metrics) cgroup.Stats {
	s := cgroup.Stats{Time: time.Now(), CPUUsageNano: known(m.GetCPU().GetUsage().GetTotal()), Pids: known(m.GetPids().GetCurrent())}
	memory := m.GetMemory()
	if memory == nil {
		return s
	}
	usage, inactive := memory.GetUsage().GetUsage(), memory.GetTotalInactiveFile()
	s.MemoryUsage, s.WorkingSet, s.RSS = known(usage), known(usage-min(usage, inactive)), known(memory.GetTotalRSS())
	s.Cache, s.MappedFile = known(memory.GetTotalCache()), known(memory.GetTotalMappedFile())
	s.ActiveFile, s.InactiveFile = known(memory.GetTotalActiveFile()), known(inactive)
	s.PageFaults, s.MajorPageFaults = known(memory.GetTotalPgFault()), known(memory.GetTotalPgMajFault())
	s.MemoryLimit = limit(memory.GetUsage().GetLimit())
	if swap := memory.GetSwap(); swap != nil {
		s.SwapUsage = known(swap.GetUsage() - min(swap.GetUsage(), usage)) // both are told as one
		if l := limit(swap.GetLimit()); l.Known && s.MemoryLimit.Known {
			s.SwapLimit = known(l.N - min(l.N, s.MemoryLimit.N))
		}
	}
	return s
}

func fromUnified(m *cgroup2.Metrics) cgroup.Stats {
	s := cgroup.Stats{Time: time.Now(), CPUUsageNano: known(m.GetCPU().GetUsageUsec() * 1000), Pids: known(m.GetPids().GetCurrent())}
	memory := m.GetMemory()
	if memory == nil {
		return s
	}
	usage, inactive := memory.GetUsage(), memory.GetInactiveFile()
	s.MemoryUsage, s.WorkingSet, s.RSS = known(usage), known(usage-min(usage, inactive)), known(memory.GetAnon())
	s.Cache, s.MappedFile = known(memory.GetFile()), known(memory.GetFileMapped())
	s.ActiveFile, s.InactiveFile = known(memory.GetActiveFile()), known(inactive)
	s.PageFaults, s.MajorPageFaults = known(memory.GetPgfault()), known(memory.GetPgmajfault())
	s.MemoryLimit, s.SwapUsage, s.SwapLimit = limit(memory.GetUsageLimit()), known(memory.GetSwapUsage()), limit(memory.GetSwapLimit())
	return s
}

// onlyWithin drops what gVisor does not tell of a container and its supervisor
// leaves at zero.
func onlyWithin(s cgroup.Stats) cgroup.Stats {
	return cgroup.Stats{
		Time: s.Time, CPUUsageNano: s.CPUUsageNano, MemoryUsage: s.MemoryUsage, WorkingSet: s.WorkingSet,
		MemoryLimit: s.MemoryLimit, Pids: s.Pids,
	}
}

func wrap(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

// value is nil for what is not known: a wrapped 0 would be a real 0.
func value(v cgroup.Value) *runtimeapi.UInt64Value {
	if !v.Known {
		return nil
	}
	return wrap(v.N)
}

func cpuUsage(u cgroup.Stats, rate cgroup.Value) *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{
		Timestamp: u.Time.UnixNano(), UsageCoreNanoSeconds: value(u.CPUUsageNano), UsageNanoCores: value(rate), Psi: psi(u.CPUPressure),
	}
}

func memoryUsage(u cgroup.Stats) *runtimeapi.MemoryUsage {
	m := &runtimeapi.MemoryUsage{
		Timestamp: u.Time.UnixNano(), WorkingSetBytes: value(u.WorkingSet), UsageBytes: value(u.MemoryUsage), RssBytes: value(u.RSS),
		PageFaults: value(u.PageFaults), MajorPageFaults: value(u.MajorPageFaults), Psi: psi(u.MemoryPressure),
	}
	if u.MemoryLimit.Known && u.WorkingSet.Known {
		m.AvailableBytes = wrap(u.MemoryLimit.N - min(u.MemoryLimit.N, u.WorkingSet.N))
	}
	return m
}

func swapUsage(u cgroup.Stats) *runtimeapi.SwapUsage {
	if !u.SwapUsage.Known {
		return nil
	}
	s := &runtimeapi.SwapUsage{Timestamp: u.Time.UnixNano(), SwapUsageBytes: value(u.SwapUsage)}
	if u.SwapLimit.Known {
		s.SwapAvailableBytes = wrap(u.SwapLimit.N - min(u.SwapLimit.N, u.SwapUsage.N))
	}
	return s
}

func ioUsage(u cgroup.Stats) *runtimeapi.IoUsage {
	if u.IOPressure == nil {
		return nil
	}
	return &runtimeapi.IoUsage{Timestamp: u.Time.UnixNano(), Psi: psi(u.IOPressure)}
}

func psi(p *cgroup.Pressure) *runtimeapi.PsiStats {
	if p == nil {
		return nil
	}
	data := func(s cgroup.Stall) *runtimeapi.PsiData {
		return &runtimeapi.PsiData{Total: s.TotalNano, Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return &runtimeapi.PsiStats{Some: data(p.Some), Full: data(p.Full)}
}

// networkUsage is nil without an interface: the kubelet takes the default one for
// granted wherever there is network usage.
func networkUsage(at time.Time, interfaces []network.InterfaceStats) *runtimeapi.NetworkUsage {
	if len(interfaces) == 0 {
		return nil
	}
	n := &runtimeapi.NetworkUsage{Timestamp: at.UnixNano(), DefaultInterface: interfaceUsage(interfaces[0])}
	for _, i := range interfaces[1:] {
		n.Interfaces = append(n.Interfaces, interfaceUsage(i))
	}
	return n
}

func interfaceUsage(i network.InterfaceStats) *runtimeapi.NetworkInterfaceUsage {
	return &runtimeapi.NetworkInterfaceUsage{
		Name: i.Name, RxBytes: wrap(i.RxBytes), RxErrors: wrap(i.RxErrors), TxBytes: wrap(i.TxBytes), TxErrors: wrap(i.TxErrors),
	}
}
