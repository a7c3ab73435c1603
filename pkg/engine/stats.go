package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	cgroup1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	cgroup2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/handler"
)

// stats serves the calls about what containers use. Nothing is collected ahead
// of a call.
type stats struct{ *core }

// ContainerStats tells what one container uses.
func (b stats) ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	c, err := b.objects.container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	s, err := b.read(ctx, c)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: s}, nil
}

// ListContainerStats tells what all containers that match use. Ended ones have
// their attributes and their writable layer.
func (b stats) ListContainerStats(ctx context.Context, r *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	f := r.GetFilter()
	filter := &runtimeapi.ContainerFilter{Id: f.GetId(), PodSandboxId: f.GetPodSandboxId(), LabelSelector: f.GetLabelSelector()}
	resp := &runtimeapi.ListContainerStatsResponse{}
	for _, c := range b.objects.allContainers() {
		if !c.matches(filter) {
			continue
		}
		s, err := b.read(ctx, c)
		if err != nil {
			// One container that is just ending must not cost the whole list.
			log.G(ctx).WithError(err).WithField("container", c.ID()).Debug("read statistics")
			continue
		}
		resp.Stats = append(resp.Stats, s)
	}
	return resp, nil
}

func (b stats) read(ctx context.Context, c *container) (*runtimeapi.ContainerStats, error) {
	config := c.config()
	s := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: c.ID(), Metadata: config.GetMetadata(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		},
		WritableLayer: b.writableLayer(ctx, c),
	}
	if c.Status().Phase != phaseRunning {
		return s, nil
	}
	used, err := b.usage(ctx, c)
	if errdefs.IsNotFound(err) || errors.Is(err, os.ErrNotExist) {
		return s, nil // it ended just now
	}
	if err != nil {
		return nil, fmt.Errorf("statistics of container %s: %w", c.ID(), err)
	}
	fill(s, used)
	return s, nil
}

func (b stats) writableLayer(ctx context.Context, c *container) *runtimeapi.FilesystemUsage {
	bytes, inodes, path, err := b.images.WritableUsage(ctx, c.ID(), c.Spec().Snapshotter)
	if err != nil {
		return nil // not counted yet
	}
	return &runtimeapi.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: path},
		UsedBytes: wrap(bytes), InodesUsed: wrap(inodes),
	}
}

func wrap(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

// usage reads the container's cgroup, or asks a runtime whose containers have none.
func (b stats) usage(ctx context.Context, c *container) (cgroup.Stats, error) {
	spec := c.sandbox.Spec()
	if spec.Definition.Type == handler.OCI && !spec.Plan.OwnKernel {
		return cgroup.ReadStats(cgroup.HostPaths(c.Spec().CgroupsPath))
	}
	client, err := b.client(ctx, c.sandbox)
	if err != nil {
		return cgroup.Stats{}, err
	}
	resp, err := client.Task.Stats(ctx, &taskapi.StatsRequest{ID: c.ID()})
	if err != nil {
		return cgroup.Stats{}, fromShim(err)
	}
	m, err := typeurl.UnmarshalAny(resp.GetStats())
	if err != nil {
		return cgroup.Stats{}, err
	}
	return fromMetrics(m)
}

// fromMetrics reads what the Task API sends.
func fromMetrics(m any) (cgroup.Stats, error) {
	known := func(v uint64) cgroup.Value { return cgroup.Value{Known: true, N: v} }
	switch m := m.(type) {
	case *cgroup1.Metrics:
		usage, inactive := m.GetMemory().GetUsage().GetUsage(), m.GetMemory().GetTotalInactiveFile()
		return cgroup.Stats{
			Time: time.Now(), CPUUsageNano: known(m.GetCPU().GetUsage().GetTotal()),
			MemoryUsage: known(usage), WorkingSet: known(usage - min(usage, inactive)), RSS: known(m.GetMemory().GetTotalRSS()),
			PageFaults: known(m.GetMemory().GetTotalPgFault()), MajorPageFaults: known(m.GetMemory().GetTotalPgMajFault()),
			Pids: known(m.GetPids().GetCurrent()),
		}, nil
	case *cgroup2.Metrics:
		usage, inactive := m.GetMemory().GetUsage(), m.GetMemory().GetInactiveFile()
		return cgroup.Stats{
			Time: time.Now(), CPUUsageNano: known(m.GetCPU().GetUsageUsec() * 1000),
			MemoryUsage: known(usage), WorkingSet: known(usage - min(usage, inactive)), RSS: known(m.GetMemory().GetAnon()),
			PageFaults: known(m.GetMemory().GetPgfault()), MajorPageFaults: known(m.GetMemory().GetPgmajfault()),
			Pids: known(m.GetPids().GetCurrent()),
		}, nil
	}
	return cgroup.Stats{}, fmt.Errorf("statistics of an unknown kind %T: %w", m, errdefs.ErrNotImplemented)
}

func fill(s *runtimeapi.ContainerStats, u cgroup.Stats) {
	at := u.Time.UnixNano()
	value := func(v cgroup.Value) *runtimeapi.UInt64Value {
		if !v.Known {
			return nil
		}
		return wrap(v.N)
	}
	s.Cpu = &runtimeapi.CpuUsage{Timestamp: at, UsageCoreNanoSeconds: value(u.CPUUsageNano), Psi: psi(u.CPUPressure)}
	s.Memory = &runtimeapi.MemoryUsage{
		Timestamp: at, WorkingSetBytes: value(u.WorkingSet), UsageBytes: value(u.MemoryUsage), RssBytes: value(u.RSS),
		PageFaults: value(u.PageFaults), MajorPageFaults: value(u.MajorPageFaults), Psi: psi(u.MemoryPressure),
	}
	if u.MemoryLimit.Known && u.WorkingSet.Known {
		s.Memory.AvailableBytes = wrap(u.MemoryLimit.N - min(u.MemoryLimit.N, u.WorkingSet.N))
	}
	if u.SwapUsage.Known {
		s.Swap = &runtimeapi.SwapUsage{Timestamp: at, SwapUsageBytes: value(u.SwapUsage)}
		if u.SwapLimit.Known {
			s.Swap.SwapAvailableBytes = wrap(u.SwapLimit.N - min(u.SwapLimit.N, u.SwapUsage.N))
		}
	}
	if u.IOPressure != nil {
		s.Io = &runtimeapi.IoUsage{Timestamp: at, Psi: psi(u.IOPressure)}
	}
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
