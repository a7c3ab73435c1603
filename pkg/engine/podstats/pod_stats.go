package podstats

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
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/usage"
)

// PodSandboxStats returns the usage of one pod. A sandbox that is not ready has no statistics.
func (b *Stats) PodSandboxStats(ctx context.Context, r *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	s, err := b.pods.Index.Sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if err := s.Open(); err != nil {
		return nil, err
	}
	ctx, cancel := answerIn(ctx)
	defer cancel()
	pods := b.Measurable(func(other *pod.Sandbox) bool { return other == s })
	if len(pods) == 0 {
		return nil, s.Open() // it was stopped meanwhile
	}
	readTraffic(ctx, pods)
	return &runtimeapi.PodSandboxStatsResponse{Stats: b.readPod(ctx, pods[0])}, nil
}

// ListPodSandboxStats returns the usage of the ready pods that match.
func (b *Stats) ListPodSandboxStats(ctx context.Context, r *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: b.listPods(ctx, r.GetFilter())}, nil
}

func (b *Stats) listPods(ctx context.Context, f *runtimeapi.PodSandboxStatsFilter) []*runtimeapi.PodSandboxStats {
	ctx, cancel := answerIn(ctx)
	defer cancel()
	filter := &runtimeapi.PodSandboxFilter{Id: f.GetId(), LabelSelector: f.GetLabelSelector()}
	pods := b.Measurable(func(s *pod.Sandbox) bool { return s.Matches(filter) })
	readTraffic(ctx, pods)
	return collect(pods, Measured.MustAsk, func(p Measured) *runtimeapi.PodSandboxStats { return b.readPod(ctx, p) })
}

// Measured is a ready sandbox with the cgroup that counts its usage.
type Measured struct {
	*pod.Sandbox
	running []*pod.Container
	// interfaces are those that readTraffic found.
	interfaces []network.InterfaceStats
	// Parent is the cgroup that the kubelet created for this pod. It is the zero value for a pod
	// without its own; then only the cgroups that berth created count.
	Parent cgroup.Paths
}

// Measurable returns the ready sandboxes that wanted accepts. A cgroup_parent that several
// sandboxes share belongs to none of them: its usage must not be attributed to each.
func (b *Stats) Measurable(wanted func(*pod.Sandbox) bool) []Measured {
	var pods []Measured
	users := map[string]int{}
	for _, s := range b.pods.Index.AllSandboxes() {
		if s.Open() != nil {
			continue
		}
		users[parentOf(s)]++
		if wanted(s) {
			pods = append(pods, Measured{Sandbox: s})
		}
	}
	running := map[string][]*pod.Container{}
	for _, c := range b.pods.Index.AllContainers() {
		if c.Status().Phase == pod.PhaseRunning {
			running[c.Spec().Sandbox] = append(running[c.Spec().Sandbox], c)
		}
	}
	for i := range pods {
		p := &pods[i]
		p.running = running[p.ID()]
		if parent := parentOf(p.Sandbox); users[parent] == 1 {
			p.Parent = cgroup.ParentPaths(parent, p.Spec().Pinned.CgroupDriver)
		}
	}
	return pods
}

func parentOf(s *pod.Sandbox) string {
	parent := s.Config().GetLinux().GetCgroupParent()
	if parent == "" {
		return ""
	}
	return path.Clean("/" + parent)
}

// readPod omits values that cannot be read.
func (b *Stats) readPod(ctx context.Context, p Measured) *runtimeapi.PodSandboxStats {
	config := p.Config()
	linux := &runtimeapi.LinuxPodSandboxStats{Containers: b.readAll(ctx, p.running), Network: usage.Network(time.Now(), p.interfaces)}
	if used, processes, err := measurePod(b, p, cgroup.ReadStats, cgroup.Sum); err == nil {
		linux.Cpu = usage.CPU(used, p.CPU.Next(used.Time, used.CPUUsageNano))
		linux.Memory, linux.Io = usage.Memory(used), usage.IO(used)
		linux.Process = &runtimeapi.ProcessUsage{Timestamp: used.Time.UnixNano(), ProcessCount: usage.Wrap(uint64(len(processes)))}
	} else if !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("sandbox", p.ID()).Debug("Failed to read pod statistics")
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: p.ID(), Metadata: config.GetMetadata(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		},
		Linux: linux,
	}
}

// readTraffic reads the interfaces of the pods' own networks. The traffic of the host's interfaces is
// not a pod's.
func readTraffic(ctx context.Context, pods []Measured) {
	var own []*Measured
	var paths []string
	for i := range pods {
		if p := &pods[i]; p.Spec().Plan.Net {
			own, paths = append(own, p), append(paths, p.Status().Namespaces.Net)
		}
	}
	for i, traffic := range network.Stats(paths...) {
		own[i].interfaces = traffic.Interfaces
		if err := traffic.Err; err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("sandbox", own[i].ID()).Debug("Failed to read pod network statistics")
		}
	}
}

// measurePod reads the usage of the pod's cgroup: its containers, the sandbox process, and
// everything else that runs for the pod. The usage of a pod without its own cgroup is the sum of
// the cgroups that berth created for it.
func measurePod[T any](b *Stats, p Measured, read func(cgroup.Paths) (T, error), sum func(...T) T) (used T, processes []int, err error) {
	used, processes, err = measureCgroup(p.Parent, read)
	if !errdefs.IsNotFound(err) {
		return used, processes, err
	}
	var parts []T
	for _, paths := range b.cgroupsOf(p) {
		part, more, err := measureCgroup(paths, read)
		if errdefs.IsNotFound(err) {
			continue // it was removed just now
		}
		if err != nil {
			return used, nil, err
		}
		parts, processes = append(parts, part), append(processes, more...)
	}
	if len(parts) == 0 && p.MustAsk() {
		return used, nil, fmt.Errorf("sandbox %s has no cgroup on this host: %w", p.ID(), errdefs.ErrNotFound)
	}
	return sum(parts...), processes, nil
}

// cgroupsOf returns the cgroups that berth created for the pod.
func (b *Stats) cgroupsOf(p Measured) []cgroup.Paths {
	all, _ := GroupsOf(p.Sandbox) // use those that were found
	for _, c := range p.running {
		all = append(all, cgroup.HostPaths(c.Spec().CgroupsPath))
	}
	return all
}

func measureCgroup[T any](p cgroup.Paths, read func(cgroup.Paths) (T, error)) (used T, processes []int, err error) {
	used, err = read(p)
	if err == nil {
		processes, err = p.Processes()
	}
	return used, processes, err
}

// GroupsOf returns the cgroups of a sandbox's own process; some may not exist.
func GroupsOf(s *pod.Sandbox) ([]cgroup.Paths, error) {
	if !s.Spec().Plan.Process {
		return nil, nil
	}
	own, err := s.Spec().CgroupsPath(s.ID())
	if err != nil {
		return nil, err
	}
	all := []cgroup.Paths{cgroup.HostPaths(own)}
	if !s.Machine {
		return all, nil
	}
	found, err := cgroup.OfPod(own, s.ID())
	for _, group := range found {
		if group.MemoryKey() != all[0].MemoryKey() {
			all = append(all, group)
		}
	}
	return all, err
}
