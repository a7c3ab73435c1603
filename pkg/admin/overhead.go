package admin

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/berth-cri/berth/pkg/overhead"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func overheadMessage(r overhead.Report) *adminv1.Overhead {
	return &adminv1.Overhead{
		Live: estimateMessage(r.Live), NoLiveReason: r.NoLive,
		DeclaredMemoryBytes: r.Declared.Memory, DeclaredCpuMillicores: r.Declared.CPU, Warning: r.Above(),
	}
}

func estimateMessage(e *overhead.Estimate) *adminv1.OverheadEstimate {
	if e == nil {
		return nil
	}
	m := &adminv1.OverheadEstimate{Pods: count(e.Pods), MemoryBytes: distributionMessage(e.Memory), MeasuredAt: stamp(e.At)}
	if e.CPUPods > 0 {
		m.CpuNanocores, m.Window = distributionMessage(e.CPU), durationpb.New(e.Window)
		m.CpuPods = count(e.CPUPods)
	}
	return m
}

func distributionMessage(d overhead.Distribution) *adminv1.OverheadDistribution {
	return &adminv1.OverheadDistribution{P50: d.P50, P95: d.P95, Max: d.Max}
}
