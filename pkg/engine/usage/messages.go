// Package usage converts measurements of a pod or a container to the CRI's messages.
//
// Unknown values stay nil: 0 would be a real 0. Everything but the rate, which keeps one sample, is
// pure.
package usage

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

// FromMetrics converts the statistics of the Task API.
func FromMetrics(m any) (cgroup.Stats, error) {
	switch m := m.(type) {
	case *cgroup1.Metrics:
		return fromV1(m), nil
	case *cgroup2.Metrics:
		return fromUnified(m), nil
	}
	return cgroup.Stats{}, fmt.Errorf("unknown type of statistics %T: %w", m, errdefs.ErrNotImplemented)
}

// limit returns an unknown value for 0, and for numbers that mean unlimited.
func limit(v uint64) cgroup.Value { return cgroup.Value{Known: v > 0 && v < 1<<62, N: v} }

func fromV1(m *cgroup1.Metrics) cgroup.Stats {
	s := cgroup.Stats{Time: time.Now(), CPUUsageNano: cgroup.Known(m.GetCPU().GetUsage().GetTotal()), Pids: cgroup.Known(m.GetPids().GetCurrent())}
	memory := m.GetMemory()
	if memory == nil {
		return s
	}
	usage, inactive := memory.GetUsage().GetUsage(), memory.GetTotalInactiveFile()
	s.MemoryUsage, s.WorkingSet, s.RSS = cgroup.Known(usage), cgroup.Known(usage-min(usage, inactive)), cgroup.Known(memory.GetTotalRSS())
	s.Cache, s.MappedFile = cgroup.Known(memory.GetTotalCache()), cgroup.Known(memory.GetTotalMappedFile())
	s.ActiveFile, s.InactiveFile = cgroup.Known(memory.GetTotalActiveFile()), cgroup.Known(inactive)
	s.PageFaults, s.MajorPageFaults = cgroup.Known(memory.GetTotalPgFault()), cgroup.Known(memory.GetTotalPgMajFault())
	s.MemoryLimit = limit(memory.GetUsage().GetLimit())
	if swap := memory.GetSwap(); swap != nil {
		s.SwapUsage = cgroup.Known(swap.GetUsage() - min(swap.GetUsage(), usage)) // the counter of swap includes memory
		if l := limit(swap.GetLimit()); l.Known && s.MemoryLimit.Known {
			s.SwapLimit = cgroup.Known(l.N - min(l.N, s.MemoryLimit.N))
		}
	}
	return s
}

func fromUnified(m *cgroup2.Metrics) cgroup.Stats {
	s := cgroup.Stats{Time: time.Now(), CPUUsageNano: cgroup.Known(m.GetCPU().GetUsageUsec() * 1000), Pids: cgroup.Known(m.GetPids().GetCurrent())}
	memory := m.GetMemory()
	if memory == nil {
		return s
	}
	usage, inactive := memory.GetUsage(), memory.GetInactiveFile()
	s.MemoryUsage, s.WorkingSet, s.RSS = cgroup.Known(usage), cgroup.Known(usage-min(usage, inactive)), cgroup.Known(memory.GetAnon())
	s.Cache, s.MappedFile = cgroup.Known(memory.GetFile()), cgroup.Known(memory.GetFileMapped())
	s.ActiveFile, s.InactiveFile = cgroup.Known(memory.GetActiveFile()), cgroup.Known(inactive)
	s.PageFaults, s.MajorPageFaults = cgroup.Known(memory.GetPgfault()), cgroup.Known(memory.GetPgmajfault())
	s.MemoryLimit, s.SwapUsage, s.SwapLimit = limit(memory.GetUsageLimit()), cgroup.Known(memory.GetSwapUsage()), limit(memory.GetSwapLimit())
	return s
}

// GVisorOnly keeps the values that gVisor measures for a container; its supervisor sends the others
// as zero.
func GVisorOnly(s cgroup.Stats) cgroup.Stats {
	return cgroup.Stats{
		Time: s.Time, CPUUsageNano: s.CPUUsageNano, MemoryUsage: s.MemoryUsage, WorkingSet: s.WorkingSet,
		MemoryLimit: s.MemoryLimit, Pids: s.Pids,
	}
}

// Wrap returns a number of the CRI, which distinguishes 0 from unknown.
func Wrap(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

// value returns nil for an unknown number: a wrapped 0 would be a real 0.
func value(v cgroup.Value) *runtimeapi.UInt64Value {
	if !v.Known {
		return nil
	}
	return Wrap(v.N)
}

// Memory converts the memory usage and the available part of the limit.
func Memory(u cgroup.Stats) *runtimeapi.MemoryUsage {
	m := &runtimeapi.MemoryUsage{
		Timestamp: u.Time.UnixNano(), WorkingSetBytes: value(u.WorkingSet), UsageBytes: value(u.MemoryUsage), RssBytes: value(u.RSS),
		PageFaults: value(u.PageFaults), MajorPageFaults: value(u.MajorPageFaults), Psi: psi(u.MemoryPressure),
	}
	if u.MemoryLimit.Known && u.WorkingSet.Known {
		m.AvailableBytes = Wrap(u.MemoryLimit.N - min(u.MemoryLimit.N, u.WorkingSet.N))
	}
	return m
}

// Swap returns nil if swap is not accounted.
func Swap(u cgroup.Stats) *runtimeapi.SwapUsage {
	if !u.SwapUsage.Known {
		return nil
	}
	s := &runtimeapi.SwapUsage{Timestamp: u.Time.UnixNano(), SwapUsageBytes: value(u.SwapUsage)}
	if u.SwapLimit.Known {
		s.SwapAvailableBytes = Wrap(u.SwapLimit.N - min(u.SwapLimit.N, u.SwapUsage.N))
	}
	return s
}

// IO returns nil without I/O pressure.
func IO(u cgroup.Stats) *runtimeapi.IoUsage {
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

// Network returns nil without an interface: the kubelet requires the default one in every network
// usage.
func Network(at time.Time, interfaces []network.InterfaceStats) *runtimeapi.NetworkUsage {
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
		Name: i.Name, RxBytes: Wrap(i.RxBytes), RxErrors: Wrap(i.RxErrors), TxBytes: Wrap(i.TxBytes), TxErrors: Wrap(i.TxErrors),
	}
}
