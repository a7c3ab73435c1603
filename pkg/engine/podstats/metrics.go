package podstats

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/openfiles"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podmetrics"
)

// ListMetricDescriptors returns the metrics of this host. The kubelet calls it once.
func (b *Stats) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: podmetrics.Descriptors(cgroup.HostFacts())}, nil
}

// ListPodSandboxMetrics measures all ready pods and their running containers.
func (b *Stats) ListPodSandboxMetrics(ctx context.Context, _ *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: b.listMetrics(ctx)}, nil
}

func (b *Stats) listMetrics(ctx context.Context) []*runtimeapi.PodSandboxMetrics {
	ctx, cancel := answerIn(ctx)
	defer cancel()
	pods := b.Measurable(func(*pod.Sandbox) bool { return true })
	readTraffic(ctx, pods)
	d := &devices{}
	disk := d.filesystem(b.images.Root())
	return collect(pods, Measured.MustAsk, func(p Measured) *runtimeapi.PodSandboxMetrics {
		return &runtimeapi.PodSandboxMetrics{
			PodSandboxId: p.ID(), Metrics: podmetrics.Of(b.podSample(ctx, p, d), cgroup.HostFacts()),
			ContainerMetrics: b.containerMetrics(ctx, p, d, disk),
		}
	})
}

// containerMetrics omits containers that cannot be measured.
func (b *Stats) containerMetrics(ctx context.Context, p Measured, d *devices, disk podmetrics.Filesystem) []*runtimeapi.ContainerMetrics {
	return present(collect(p.running, (*pod.Container).MustAsk, func(c *pod.Container) *runtimeapi.ContainerMetrics {
		s, err := b.containerSample(ctx, p, c, d, disk)
		if err != nil {
			log.G(ctx).WithError(err).WithField("container", c.ID()).Debug("Failed to read container metrics")
			return nil
		}
		return &runtimeapi.ContainerMetrics{ContainerId: c.ID(), Metrics: podmetrics.Of(s, cgroup.HostFacts())}
	}))
}

// podSample is the pod as a whole: its network, and its total usage.
func (b *Stats) podSample(ctx context.Context, p Measured, d *devices) podmetrics.Sample {
	meta := p.Config().GetMetadata()
	s := podmetrics.Sample{
		Subject: podmetrics.Subject{Pod: meta.GetName(), Namespace: meta.GetNamespace(), ID: p.ID()},
		Seen:    time.Now(), Started: time.Unix(0, p.Spec().CreatedAt), Network: p.interfaces,
	}
	detail, processes, err := measurePod(b, p, cgroup.ReadDetail, cgroup.SumDetails)
	if err == nil {
		s.Cgroup, s.Processes, s.BlockIO = detail, cgroup.Known(uint64(len(processes))), d.named(detail.IO)
	} else if !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("sandbox", p.ID()).Debug("Failed to read pod metrics")
	}
	return s
}

func (b *Stats) containerSample(ctx context.Context, p Measured, c *pod.Container, d *devices, disk podmetrics.Filesystem) (podmetrics.Sample, error) {
	meta := p.Config().GetMetadata()
	st := c.Status()
	s := podmetrics.Sample{
		Subject: podmetrics.Subject{
			Pod: meta.GetName(), Namespace: meta.GetNamespace(), Container: c.Config().GetMetadata().GetName(), ID: c.ID(), Image: shownImage(c),
		},
		Seen: time.Now(), Started: time.Unix(0, st.StartedAt),
		Spec: specOf(st.Resources.Msg.GetLinux()),
	}
	if layer := b.writableLayer(ctx, c); layer != nil {
		disk.Used = cgroup.Known(layer.GetUsedBytes().GetValue())
		s.Filesystem = disk
	}
	if c.MustAsk() {
		used, err := b.usage(ctx, c)
		s.Cgroup, s.Processes = cgroup.Detail{Stats: used}, used.Pids
		return s, err
	}
	detail, pids, err := measureCgroup(cgroup.HostPaths(c.Spec().CgroupsPath), cgroup.ReadDetail)
	if err != nil {
		return s, err
	}
	s.Cgroup, s.Processes, s.BlockIO = detail, cgroup.Known(uint64(len(pids))), d.named(detail.IO)
	s.Spec.MemoryReservation = s.Cgroup.MemoryReservation
	open, err := openfiles.Count(ctx, pids)
	if err != nil {
		return s, err
	}
	s.FileDescriptors, s.Sockets = cgroup.Known(open.Files), cgroup.Known(open.Sockets)
	s.OpenFilesLimit.N, s.OpenFilesLimit.Known, err = openfiles.SoftLimit(st.PID)
	return s, err
}

// shownImage is the image name in the pod's manifest.
func shownImage(c *pod.Container) string {
	if name := c.Config().GetImage().GetUserSpecifiedImage(); name != "" {
		return name
	}
	return c.Spec().ImageName
}

// specOf returns the limits in force; zero means not set.
func specOf(r *runtimeapi.LinuxContainerResources) *podmetrics.Spec {
	set := func(n int64) cgroup.Value { return cgroup.Value{N: uint64(n), Known: n > 0} }
	return &podmetrics.Spec{
		CPUPeriod: set(r.GetCpuPeriod()), CPUQuota: set(r.GetCpuQuota()), CPUShares: set(r.GetCpuShares()),
		MemoryLimit: set(r.GetMemoryLimitInBytes()), SwapLimit: set(r.GetMemorySwapLimitInBytes()),
	}
}
