package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/task"
)

type processes struct{ Deps }

func (b *processes) Start(ctx context.Context, s *pod.Sandbox) error {
	if !s.Spec().Plan.Process {
		return nil
	}
	if err := b.writeProcessBundle(ctx, s); err != nil {
		return fmt.Errorf("sandbox process: %w", err)
	}
	limit := s.Runner.LaunchTimeout()
	caller := ctx
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	client, err := s.Runner.Launch(ctx)
	if err != nil {
		return fmt.Errorf("sandbox process: %w", err)
	}
	if err := b.Binaries.Runtimes.Ensure(s); err != nil {
		return err
	}
	options, err := s.Runner.Options(pod.TaskOptions{Checkpoint: s.Spec().Checkpoint})
	if err != nil {
		return err
	}
	memory := task.MemoryOf(s)
	unanswered, err := container.CallCreate(ctx, client, &taskapi.CreateTaskRequest{
		ID: s.ID(), Bundle: b.Pods.ProcessBundle(s.ID()), Rootfs: b.processRootfs(s), Options: options,
		Checkpoint: s.Spec().Checkpoint,
	})
	s.Creating.Store(unanswered)
	if err != nil {
		err = task.ExplainTimeout(limit, err)
		if s.CreatesEarly() {
			err = s.Runner.Attribute(err)
		}
		return fmt.Errorf("create sandbox process: %w", err)
	}
	if !s.CreatesEarly() {
		// A hanging runtime is killed when the caller's context ends, so that roll-back can begin.
		defer context.AfterFunc(caller, func() {
			_, _ = client.Task.Kill(ctx, &taskapi.KillRequest{ID: s.ID(), Signal: uint32(syscall.SIGKILL)})
		})()
	}
	started, err := client.Task.Start(ctx, &taskapi.StartRequest{ID: s.ID()})
	if err != nil && errors.Is(caller.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("the runtime did not start it before the deadline of the request, and was killed: %w", context.DeadlineExceeded)
	}
	if err != nil {
		return fmt.Errorf("start sandbox process: %w", s.Runner.Attribute(memory.Explain(task.ExplainTimeout(limit, task.FromShim(err)))))
	}
	s.Runner.Keep(ctx, shim.Kept{ID: s.ID(), PID: int(started.Pid)})
	return s.Update(func(st *pod.SandboxStatus) error { st.PID = int(started.Pid); return nil })
}

// processRootfs is the root filesystem of the sandbox process, for a Runner that mounts it itself.
func (b *processes) processRootfs(s *pod.Sandbox) []*types.Mount {
	if !s.MountsRootfs() {
		return nil
	}
	return []*types.Mount{{Type: "bind", Source: b.Binaries.Tools.PauseRoot, Options: []string{"rbind", "ro"}}}
}

func (b *processes) writeProcessBundle(ctx context.Context, s *pod.Sandbox) error {
	rt, err := b.Binaries.Prober.Probe(ctx, b.Binaries.Runtimes.Of(s.Spec()))
	if err != nil {
		return err
	}
	path, err := s.Spec().CgroupsPath(s.ID())
	if err != nil {
		return err
	}
	facts := b.Pods.SpecSandbox(s)
	facts.PID = 0
	base, err := b.Settings.BaseSpec(s.Spec())
	if err != nil {
		return err
	}
	spec, err := ocispec.BuildSandboxProcess(ocispec.SandboxProcess{
		Sandbox: facts, PausePath: "/" + binaries.PauseName, CgroupsPath: path, Runtime: rt, Base: base, MemoryLimit: b.memoryOf(ctx, s),
	}, b.Settings.NodeOf(s.Spec()))
	if err != nil {
		return err
	}
	bundle := b.Pods.ProcessBundle(s.ID())
	rootfs := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(rootfs, 0o711); err != nil {
		return err
	}
	if !s.MountsRootfs() {
		if err := unix.Mount(b.Binaries.Tools.PauseRoot, rootfs, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount its root filesystem: %w", err)
		}
		if b.Binaries.Tools.NoExec {
			if err := unix.Mount("", rootfs, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
				return fmt.Errorf("allow executing binaries in its root filesystem: %w", err)
			}
		}
	}
	return pod.WriteSpec(bundle, spec)
}

// memoryOf is the pod's memory limit if the pod has its own kernel, and otherwise 0. The kubelet
// sets the limit in the pod's cgroup before it runs the sandbox.
func (b *processes) memoryOf(ctx context.Context, s *pod.Sandbox) uint64 {
	if !s.MemoryLimit {
		return 0
	}
	stats, err := cgroup.ReadStats(s.Parent())
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Debug("Failed to read the memory limit of pod; its VM sees all memory of the node")
		return 0
	}
	return stats.MemoryLimit.N
}

// Watch makes the sandbox NOTREADY when its process exits by itself.
func (b *processes) Watch(s *pod.Sandbox) {
	exit, err := b.Tasks.Await(s, s.ID())
	if err != nil {
		return // the engine is closing
	}
	log.G(b.Pods.Background).WithField("sandbox", s.ID()).WithField("code", exit.Status).Debug("Sandbox process exited")
	s.Record(b.Pods.Background, func(st *pod.SandboxStatus) { st.Phase, st.PID, st.ExitCode = pod.PhaseStopped, 0, exit.Status })
	b.Tasks.Drop(s, s.ID())
	b.Events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
}

// stop stops the sandbox process and removes the runtime's state of it. It is idempotent.
func (b *processes) stop(ctx context.Context, s *pod.Sandbox) error {
	if !s.Spec().Plan.Process {
		return nil
	}
	b.Binaries.Runtimes.EnsureForStop(s)
	err := s.Runner.End(ctx)
	if err != nil {
		return fmt.Errorf("sandbox process: %w", err)
	}
	b.Tasks.Drop(s, s.ID())
	return mountpoint.Unmount(filepath.Join(b.Pods.ProcessBundle(s.ID()), "rootfs"))
}
