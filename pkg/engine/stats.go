package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/usage"
	"github.com/berth-cri/berth/pkg/handler"
)

// stats serves the calls about what containers and pods use. Nothing is
// collected ahead of a call.
type stats struct {
	objects  *objects
	settings *settings
	tasks    *tasks
	images   filesystems
	lanes    *lanes
}

// filesystems knows what containers have written.
type filesystems interface {
	Root() string
	WritableUsage(ctx context.Context, id, snapshotter string) (bytes, inodes uint64, path string, err error)
}

// ContainerStats tells what one container uses.
func (b stats) ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	c, err := b.objects.container(r.GetContainerId())
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

// ListContainerStats tells what all containers that match use. Ended ones have
// their attributes and their writable layer.
func (b stats) ListContainerStats(ctx context.Context, r *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{Stats: b.list(ctx, r.GetFilter())}, nil
}

func (b stats) list(ctx context.Context, f *runtimeapi.ContainerStatsFilter) []*runtimeapi.ContainerStats {
	filter := &runtimeapi.ContainerFilter{Id: f.GetId(), PodSandboxId: f.GetPodSandboxId(), LabelSelector: f.GetLabelSelector()}
	var matching []*container
	for _, c := range b.objects.allContainers() {
		if c.matches(filter) {
			matching = append(matching, c)
		}
	}
	ctx, cancel := answerIn(ctx)
	defer cancel()
	return b.readAll(ctx, matching)
}

// readAll leaves out the containers that cannot be read: one that is just ending,
// or whose runtime does not answer, must not cost the others.
func (b stats) readAll(ctx context.Context, all []*container) []*runtimeapi.ContainerStats {
	return present(collect(all, (*container).mustAsk, func(c *container) *runtimeapi.ContainerStats {
		s, err := b.read(ctx, c)
		if err != nil {
			log.G(ctx).WithError(err).WithField("container", c.ID()).Debug("read statistics")
			return nil
		}
		return s
	}))
}

// present drops what is nil, in place.
func present[T any](all []*T) []*T {
	kept := all[:0]
	for _, x := range all {
		if x != nil {
			kept = append(kept, x)
		}
	}
	return kept
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
	s.Cpu = usage.CPU(used, c.cpu.Next(used.Time, used.CPUUsageNano))
	s.Memory, s.Swap, s.Io = usage.Memory(used), usage.Swap(used), usage.IO(used)
	return s, nil
}

func (b stats) writableLayer(ctx context.Context, c *container) *runtimeapi.FilesystemUsage {
	bytes, inodes, path, err := b.images.WritableUsage(ctx, c.ID(), c.Spec().Snapshotter)
	if err != nil {
		return nil // not counted yet
	}
	return &runtimeapi.FilesystemUsage{
		Timestamp: time.Now().UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: path},
		UsedBytes: usage.Wrap(bytes), InodesUsed: usage.Wrap(inodes),
	}
}

// mustAsk tells whether only the process that runs c knows what it uses: no
// cgroup of this host is the container's own.
func (c *container) mustAsk() bool {
	return c.sandbox.mustAsk() && c.Status().Phase == phaseRunning
}

func (s *sandbox) mustAsk() bool { return s.Spec().Plan.OwnKernel }

// usage reads the container's cgroup, or asks who runs it.
func (b stats) usage(ctx context.Context, c *container) (cgroup.Stats, error) {
	if !c.sandbox.mustAsk() {
		return cgroup.ReadStats(cgroup.HostPaths(c.Spec().CgroupsPath))
	}
	spec := c.sandbox.Spec()
	asked := spec.Supervisor
	if spec.Definition.Type != handler.OCI {
		asked = c.sandbox.ID() // it has a shim of its own
	}
	used, err := ask(ctx, b.lanes, asked, func(ctx context.Context) (cgroup.Stats, error) { return b.taskUsage(ctx, c) })
	if spec.Definition.Type == handler.OCI {
		used = usage.OnlyWithin(used)
	}
	return used, err
}

// taskUsage asks by the Task API.
func (b stats) taskUsage(ctx context.Context, c *container) (cgroup.Stats, error) {
	client, err := b.tasks.client(ctx, c.sandbox)
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
	return usage.FromMetrics(m)
}
