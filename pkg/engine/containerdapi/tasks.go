package containerdapi

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	cgroup2stats "github.com/containerd/cgroups/v3/cgroup2/stats"
	tasksapi "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	taskapi "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

type taskService struct {
	tasksapi.UnimplementedTasksServer
	view  *view
	stats Stats
}

func (s *taskService) Get(ctx context.Context, r *tasksapi.GetRequest) (*tasksapi.GetResponse, error) {
	found, err := s.find(ctx, r.GetContainerID(), r.GetExecID())
	if errdefs.IsNotFound(err) && r.GetExecID() == "" {
		// Agents look up a sandbox's task when they see its cgroup, which is before it is READY.
		if own, _ := ours(ctx); own {
			if made, ok := s.view.unfinished(r.GetContainerID()); ok && made.Status().PID != 0 {
				return &tasksapi.GetResponse{Process: sandboxProcess(made.ID(), made.Status())}, nil
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return &tasksapi.GetResponse{Process: s.process(found)}, nil
}

func sandboxProcess(id string, st *pod.SandboxStatus) *taskapi.Process {
	return &taskapi.Process{ContainerID: id, ID: id, Pid: uint32(st.PID), Status: taskapi.Status_RUNNING}
}

func (s *taskService) find(ctx context.Context, id, exec string) (subject, error) {
	own, err := ours(ctx)
	if err != nil {
		return subject{}, err
	}
	if exec != "" || !own {
		return subject{}, fmt.Errorf("process %.100q of container %.100q: %w", exec, id, errdefs.ErrNotFound)
	}
	found, err := s.view.find(id)
	if err == nil && s.process(found) == nil {
		err = fmt.Errorf("container %s has no process: %w", id, errdefs.ErrNotFound)
	}
	return found, err
}

func (s *taskService) List(ctx context.Context, r *tasksapi.ListTasksRequest) (*tasksapi.ListTasksResponse, error) {
	wants, err := filters.ParseAll(r.GetFilter())
	if err != nil {
		return nil, err
	}
	resp := &tasksapi.ListTasksResponse{}
	own, err := ours(ctx)
	if err != nil || !own {
		return resp, err
	}
	for _, one := range s.view.all() {
		if p := s.process(one); p != nil && wants.Match(adapt(map[string]string{"id": p.GetID(), "namespace": Namespace}, nil)) {
			resp.Tasks = append(resp.Tasks, p)
		}
	}
	return resp, nil
}

// process is the first process of a sandbox or container, or nil. As under containerd's CRI, a
// container has no task before its start.
func (s *taskService) process(of subject) *taskapi.Process {
	if of.sandbox != nil {
		st := of.sandbox.Status()
		if st.PID == 0 || st.Phase != pod.PhaseReady {
			return nil
		}
		return sandboxProcess(of.sandbox.ID(), st)
	}
	c := of.container
	st, io := c.Status(), s.view.pods.Stdio(c)
	if st.Phase == pod.PhaseCreated && st.PID == 0 {
		return nil
	}
	p := &taskapi.Process{
		ContainerID: c.ID(), ID: c.ID(), Pid: uint32(st.PID), Terminal: c.Config().GetTty(),
		Stdin: io.Stdin, Stdout: io.Stdout, Stderr: io.Stderr,
	}
	switch st.Phase {
	case pod.PhaseCreated:
		p.Status = taskapi.Status_CREATED
	case pod.PhaseRunning:
		p.Status = taskapi.Status_RUNNING
	case pod.PhaseExited:
		p.Status, p.Pid, p.ExitStatus, p.ExitedAt = taskapi.Status_STOPPED, 0, uint32(st.ExitCode), timestamppb.New(time.Unix(0, st.FinishedAt))
	default:
		p.Status = taskapi.Status_UNKNOWN
	}
	return p
}

func (s *taskService) Wait(ctx context.Context, r *tasksapi.WaitRequest) (*tasksapi.WaitResponse, error) {
	found, err := s.find(ctx, r.GetContainerID(), r.GetExecID())
	if err != nil {
		return nil, err
	}
	if found.sandbox != nil {
		exit, err := found.sandbox.Runner.Exit(ctx, found.sandbox.ID())
		if err != nil {
			return nil, err
		}
		return &tasksapi.WaitResponse{ExitStatus: exit.Status, ExitedAt: timestamppb.New(exit.At)}, nil
	}
	select {
	case <-found.container.Exited:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	st := found.container.Status()
	return &tasksapi.WaitResponse{ExitStatus: uint32(st.ExitCode), ExitedAt: timestamppb.New(time.Unix(0, st.FinishedAt))}, nil
}

// ListPids implements tasksapi.TasksServer. For a container with its own kernel it returns only the
// process that runs on the node.
func (s *taskService) ListPids(ctx context.Context, r *tasksapi.ListPidsRequest) (*tasksapi.ListPidsResponse, error) {
	found, err := s.find(ctx, r.GetContainerID(), "")
	if err != nil {
		return nil, err
	}
	p := s.process(found)
	if p.GetStatus() != taskapi.Status_RUNNING {
		return nil, fmt.Errorf("container %s is not running: %w", r.GetContainerID(), errdefs.ErrFailedPrecondition)
	}
	pids := []int{int(p.GetPid())}
	if path := s.cgroup(found); path != "" {
		if pids, err = cgroup.HostPaths(path).Processes(); err != nil {
			return nil, fmt.Errorf("processes of container %s: %w", r.GetContainerID(), err)
		}
	}
	resp := &tasksapi.ListPidsResponse{}
	for _, pid := range pids {
		resp.Processes = append(resp.Processes, &taskapi.ProcessInfo{Pid: uint32(pid)})
	}
	return resp, nil
}

// cgroup is the cgroupsPath of a sandbox's or container's processes; empty if no cgroup of this
// node contains them.
func (s *taskService) cgroup(of subject) string {
	if of.container != nil {
		if !of.container.Sandbox.HostProcesses {
			return ""
		}
		return of.container.Spec().CgroupsPath
	}
	if !of.sandbox.HostProcesses {
		return ""
	}
	spec, err := pod.ReadSpec(s.view.pods.ProcessBundle(of.sandbox.ID()))
	if err != nil {
		return "" // being removed
	}
	return spec.Linux.CgroupsPath
}

// Metrics implements tasksapi.TasksServer. It omits tasks that cannot be measured, as after an
// exit.
func (s *taskService) Metrics(ctx context.Context, r *tasksapi.MetricsRequest) (*tasksapi.MetricsResponse, error) {
	wants, err := filters.ParseAll(r.GetFilters()...)
	if err != nil {
		return nil, err
	}
	resp := &tasksapi.MetricsResponse{}
	own, err := ours(ctx)
	if err != nil || !own {
		return resp, err
	}
	for _, one := range s.view.all() {
		p := s.process(one)
		if p.GetStatus() != taskapi.Status_RUNNING || !wants.Match(adapt(map[string]string{"id": p.GetID(), "namespace": Namespace}, nil)) {
			continue
		}
		data, err := s.measure(ctx, one)
		if err != nil {
			log.G(ctx).WithError(err).WithField("container", p.GetID()).Debug("Failed to measure a task")
			continue
		}
		resp.Metrics = append(resp.Metrics, &types.Metric{Timestamp: timestamppb.Now(), ID: p.GetID(), Data: data})
	}
	return resp, ctx.Err()
}

// Stats measures containers without a cgroup on this node.
type Stats interface {
	ContainerStats(ctx context.Context, r *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error)
}

// measure returns a task's usage in containerd's message for cgroup v1 or v2.
func (s *taskService) measure(ctx context.Context, of subject) (*anypb.Any, error) {
	m, err := s.read(ctx, of)
	if err != nil {
		return nil, err
	}
	return typeurl.MarshalAnyToProto(m)
}

func (s *taskService) read(ctx context.Context, of subject) (proto.Message, error) {
	path := s.cgroup(of)
	switch {
	case path != "":
		return readCgroup(path)
	case of.sandbox != nil:
		return nil, fmt.Errorf("sandbox %s is measured with its containers: %w", of.sandbox.ID(), errdefs.ErrNotFound)
	}
	r, err := s.stats.ContainerStats(ctx, &runtimeapi.ContainerStatsRequest{ContainerId: of.container.ID()})
	if err != nil {
		return nil, err
	}
	return ofRuntime(r.GetStats()), nil
}

func readCgroup(path string) (proto.Message, error) {
	inside := cgroup.Inside(path)
	if inside == "" {
		return nil, fmt.Errorf("cgroup %q: %w", path, errdefs.ErrNotFound)
	}
	if cgroups.Mode() == cgroups.Unified {
		m, err := cgroup2.Load(inside)
		if err != nil {
			return nil, err
		}
		return m.Stat()
	}
	c, err := cgroup1.Load(cgroup1.StaticPath(inside))
	if err != nil {
		return nil, err
	}
	return c.Stat(cgroup1.IgnoreNotExist)
}

// ofRuntime converts the measurement of a runtime with its own kernel. Pure.
func ofRuntime(s *runtimeapi.ContainerStats) *cgroup2stats.Metrics {
	return &cgroup2stats.Metrics{
		CPU:    &cgroup2stats.CPUStat{UsageUsec: s.GetCpu().GetUsageCoreNanoSeconds().GetValue() / 1000},
		Memory: &cgroup2stats.MemoryStat{Usage: s.GetMemory().GetUsageBytes().GetValue(), Anon: s.GetMemory().GetRssBytes().GetValue()},
	}
}
