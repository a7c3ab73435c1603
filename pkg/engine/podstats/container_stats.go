// Package podstats measures pods and containers for the CRI: statistics and metrics.
package podstats

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/keyedlock"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/usage"
)

// Stats serves the calls for statistics of containers and pods. It collects nothing ahead of a
// call.
type Stats struct {
	pods    *pod.Registry
	images  *image.Store
	queries *keyedlock.Locks // by the process that runs tasks
}

// New returns the Stats of one engine's pods.
func New(pods *pod.Registry, images *image.Store) *Stats {
	return &Stats{pods: pods, images: images, queries: keyedlock.New(queriesPerProcess)}
}

// ContainerStats returns the usage of one container.
func (b *Stats) ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	c, err := b.pods.Index.Container(r.GetContainerId())
	if err != nil {
		return nil, err
	}
	ctx, cancel := answerIn(ctx)
	defer cancel()
	s, err := b.read(ctx, c)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: s}, nil
}

// ListContainerStats returns the usage of all matching containers. Exited containers have only
// their attributes and their writable layer.
func (b *Stats) ListContainerStats(ctx context.Context, r *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{Stats: b.list(ctx, r.GetFilter())}, nil
}

func (b *Stats) list(ctx context.Context, f *runtimeapi.ContainerStatsFilter) []*runtimeapi.ContainerStats {
	filter := &runtimeapi.ContainerFilter{Id: f.GetId(), PodSandboxId: f.GetPodSandboxId(), LabelSelector: f.GetLabelSelector()}
	var matching []*pod.Container
	for _, c := range b.pods.Index.AllContainers() {
		if c.Matches(filter) {
			matching = append(matching, c)
		}
	}
	ctx, cancel := answerIn(ctx)
	defer cancel()
	return b.readAll(ctx, matching)
}

// readAll omits containers that cannot be read: one that is exiting, or has a runtime that does not
// answer, must not fail the others.
func (b *Stats) readAll(ctx context.Context, all []*pod.Container) []*runtimeapi.ContainerStats {
	return present(collect(all, (*pod.Container).MustAsk, func(c *pod.Container) *runtimeapi.ContainerStats {
		s, err := b.read(ctx, c)
		if err != nil {
			log.G(ctx).WithError(err).WithField("container", c.ID()).Debug("Failed to read container statistics")
			return nil
		}
		return s
	}))
}

// present drops nil items, in place.
func present[T any](all []*T) []*T {
	return slices.DeleteFunc(all, func(x *T) bool { return x == nil })
}

func (b *Stats) read(ctx context.Context, c *pod.Container) (*runtimeapi.ContainerStats, error) {
	config := c.Config()
	s := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: c.ID(), Metadata: config.GetMetadata(), Labels: config.GetLabels(), Annotations: config.GetAnnotations(),
		},
		WritableLayer: b.writableLayer(ctx, c),
	}
	if c.Status().Phase != pod.PhaseRunning {
		return s, nil
	}
	used, err := b.usage(ctx, c)
	if errdefs.IsNotFound(err) || errors.Is(err, os.ErrNotExist) {
		return s, nil // it exited just now
	}
	if err != nil {
		return nil, fmt.Errorf("statistics of container %s: %w", c.ID(), err)
	}
	s.Cpu = usage.CPU(used, c.CPU.Next(used.Time, used.CPUUsageNano))
	s.Memory, s.Swap, s.Io = usage.Memory(used), usage.Swap(used), usage.IO(used)
	return s, nil
}

func (b *Stats) writableLayer(ctx context.Context, c *pod.Container) *runtimeapi.FilesystemUsage {
	bytes, inodes, path, err := b.images.Meter.WritableUsage(ctx, c.ID(), c.Spec().Snapshotter)
	if err != nil {
		return nil // not counted yet
	}
	return &runtimeapi.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: path},
		UsedBytes: usage.Wrap(bytes), InodesUsed: usage.Wrap(inodes),
	}
}

// usage reads the container's cgroup, or asks the process that runs it.
func (b *Stats) usage(ctx context.Context, c *pod.Container) (cgroup.Stats, error) {
	if !c.Sandbox.MustAsk() {
		return cgroup.ReadStats(cgroup.HostPaths(c.Spec().CgroupsPath))
	}
	return ask(ctx, b.queries, c.Sandbox.Runner.Name(), func(ctx context.Context) (cgroup.Stats, error) {
		return c.Sandbox.Runner.Usage(ctx, c.ID())
	})
}
