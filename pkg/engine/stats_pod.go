package engine

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/usage"
)

// PodSandboxStats tells what one pod uses. A sandbox that is not ready uses
// nothing that could be told.
func (b stats) PodSandboxStats(ctx context.Context, r *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	s, err := b.objects.sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		return nil, err
	}
	ctx, cancel := answerIn(ctx)
	defer cancel()
	pods := b.measurable(func(other *sandbox) bool { return other == s })
	if len(pods) == 0 {
		return nil, s.open() // it was stopped meanwhile
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: b.readPod(ctx, pods[0])}, nil
}

// ListPodSandboxStats tells what the ready pods that match use.
func (b stats) ListPodSandboxStats(ctx context.Context, r *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: b.listPods(ctx, r.GetFilter())}, nil
}

func (b stats) listPods(ctx context.Context, f *runtimeapi.PodSandboxStatsFilter) []*runtimeapi.PodSandboxStats {
	ctx, cancel := answerIn(ctx)
	defer cancel()
	filter := &runtimeapi.PodSandboxFilter{Id: f.GetId(), LabelSelector: f.GetLabelSelector()}
	pods := b.measurable(func(s *sandbox) bool { return s.matches(filter) })
	return collect(pods, pod.mustAsk, func(p pod) *runtimeapi.PodSandboxStats { return b.readPod(ctx, p) })
}

// pod is a ready sandbox, and where what it uses is counted.
type pod struct {
	*sandbox
	running []*container
	// parent is the cgroup that the kubelet made for this pod. It is the zero value
	// for a pod without one: then only the cgroups below it count.
	parent cgroup.Paths
}

// measurable returns the ready sandboxes that are wanted. A cgroup_parent that
// several of them name is no pod's: what all of them use must not be told of each.
func (b stats) measurable(wanted func(*sandbox) bool) []pod {
	var pods []pod
	users := map[string]int{}
	for _, s := range b.objects.allSandboxes() {
		if s.open() != nil {
			continue
		}
		users[parentOf(s)]++
		if wanted(s) {
			pods = append(pods, pod{sandbox: s})
		}
	}
	running := map[string][]*container{}
	for _, c := range b.objects.allContainers() {
		if c.Status().Phase == phaseRunning {
			running[c.Spec().Sandbox] = append(running[c.Spec().Sandbox], c)
		}
	}
	for i := range pods {
		p := &pods[i]
		p.running = running[p.ID()]
		if parent := parentOf(p.sandbox); users[parent] == 1 {
			p.parent = cgroup.ParentPaths(parent, b.settings.of(p.Spec()).CgroupDriver)
		}
	}
	return pods
}

func parentOf(s *sandbox) string {
	parent := s.config().GetLinux().GetCgroupParent()
	if parent == "" {
		return ""
	}
	return path.Clean("/" + parent)
}

// readPod leaves out what cannot be read.
func (b stats) readPod(ctx context.Context, p pod) *runtimeapi.PodSandboxStats {
	config := p.config()
	linux := &runtimeapi.LinuxPodSandboxStats{Containers: b.readAll(ctx, p.running)}
	if used, processes, err := b.podUsage(p); err == nil {
		linux.Cpu = usage.CPU(used, p.cpu.Next(used.Time, used.CPUUsageNano))
		linux.Memory, linux.Io = usage.Memory(used), usage.IO(used)
		linux.Process = &runtimeapi.ProcessUsage{Timestamp: used.Time.UnixNano(), ProcessCount: usage.Wrap(uint64(processes))}
	} else if !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("sandbox", p.ID()).Debug("read statistics")
	}
	if interfaces, err := p.interfaces(); err == nil {
		linux.Network = usage.Network(time.Now(), interfaces)
	} else if !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("sandbox", p.ID()).Debug("read network statistics")
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: p.ID(), Metadata: config.GetMetadata(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		},
		Linux: linux,
	}
}

// interfaces are those of the pod's own network: what the host's carry is not the
// pod's.
func (p pod) interfaces() ([]network.InterfaceStats, error) {
	if !p.Spec().Plan.Net {
		return nil, nil
	}
	return network.Stats(p.Status().Namespaces.Net)
}

// podUsage is what the pod uses, and how many processes it has.
func (b stats) podUsage(p pod) (cgroup.Stats, int, error) {
	return measurePod(b, p, cgroup.ReadStats, cgroup.Sum)
}

// podDetail is podUsage with what metrics tell beside.
func (b stats) podDetail(p pod) (cgroup.Detail, int, error) {
	return measurePod(b, p, cgroup.ReadDetail, cgroup.SumDetails)
}

// measurePod reads what the pod's cgroup counts: its containers, the sandbox
// process, and all else that runs for the pod. A pod without a cgroup of its own
// uses the sum of what is counted in those below.
func measurePod[T any](b stats, p pod, read func(cgroup.Paths) (T, error), sum func(...T) T) (T, int, error) {
	var none T
	used, processes, err := measureCgroup(p.parent, read)
	if !errdefs.IsNotFound(err) {
		return used, processes, err
	}
	var parts []T
	for _, paths := range b.cgroupsOf(p) {
		part, n, err := measureCgroup(paths, read)
		if errdefs.IsNotFound(err) {
			continue // it ended just now
		}
		if err != nil {
			return none, 0, err
		}
		parts, processes = append(parts, part), processes+n
	}
	if len(parts) == 0 && p.mustAsk() {
		return none, 0, fmt.Errorf("sandbox %s has no cgroup on this host: %w", p.ID(), errdefs.ErrNotFound)
	}
	return sum(parts...), processes, nil
}

// cgroupsOf are the cgroups that berth made for the pod.
func (b stats) cgroupsOf(p pod) []cgroup.Paths {
	var all []cgroup.Paths
	if own, err := groupsOf(b.settings.of(p.Spec()).CgroupDriver, p.sandbox); err == nil {
		all = own
	}
	for _, c := range p.running {
		all = append(all, cgroup.HostPaths(c.Spec().CgroupsPath))
	}
	return all
}

func measureCgroup[T any](p cgroup.Paths, read func(cgroup.Paths) (T, error)) (T, int, error) {
	used, err := read(p)
	if err != nil {
		return used, 0, err
	}
	pids, err := p.Processes()
	return used, len(pids), err
}
