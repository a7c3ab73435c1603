package admin

import (
	"cmp"
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/overhead"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// Overheads knows what pods use beyond their containers.
type Overheads interface {
	Of(ctx context.Context, d *handler.Definition) overhead.Report
	Measure(ctx context.Context, d *handler.Definition, r overhead.Request, progress func(overhead.Step)) (overhead.Report, error)
}

// overheads answers what handlers cost.
type overheads struct {
	view
	known Overheads // may be nil
}

// MeasureOverhead implements adminv1.AdminServer.
func (o overheads) MeasureOverhead(req *adminv1.MeasureOverheadRequest, to adminv1.Admin_MeasureOverheadServer) error {
	if o.known == nil {
		return fmt.Errorf("this daemon does not measure overhead: %w", errdefs.ErrNotImplemented)
	}
	h, err := o.life.Handler(cmp.Or(req.GetName(), o.life.Current().Default))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(to.Context())
	defer cancel()
	wanted := overhead.Request{Pods: int(req.GetPods()), Window: req.GetWindow().AsDuration()}
	r, err := o.known.Measure(ctx, h.Definition, wanted, func(s overhead.Step) {
		if err := to.Send(&adminv1.MeasureOverheadResponse{Step: s.Doing, Done: count(s.Done), All: count(s.All)}); err != nil {
			cancel() // nobody waits for it any more
		}
	})
	if err != nil {
		return err
	}
	return to.Send(&adminv1.MeasureOverheadResponse{Overhead: overheadMessage(r)})
}

func overheadMessage(r overhead.Report) *adminv1.Overhead {
	return &adminv1.Overhead{
		Live: estimateMessage(r.Live), Canary: estimateMessage(r.SelfCheck), Best: estimateMessage(r.Best()), NoLiveReason: r.NoLive,
		DeclaredMemoryBytes: r.Declared.Memory, DeclaredCpuMillicores: r.Declared.CPU, Warning: r.Above(),
	}
}

func estimateMessage(e *overhead.Estimate) *adminv1.OverheadEstimate {
	if e == nil {
		return nil
	}
	m := &adminv1.OverheadEstimate{Pods: count(e.Pods), MemoryBytes: distributionMessage(e.Memory), MeasuredAt: stamp(e.At), MemorySource: string(e.MemoryOf)}
	if e.CPUPods > 0 {
		m.CpuNanocores, m.Window = distributionMessage(e.CPU), durationpb.New(e.Window)
		m.CpuPods, m.CpuSource = count(e.CPUPods), string(e.CPUOf)
	}
	return m
}

func distributionMessage(d overhead.Distribution) *adminv1.OverheadDistribution {
	return &adminv1.OverheadDistribution{P50: d.P50, P95: d.P95, Max: d.Max}
}
