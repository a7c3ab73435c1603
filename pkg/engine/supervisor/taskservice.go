package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// taskService implements containerd.task.v3.Task.
type taskService struct {
	*supervisor
}

var empty = &emptypb.Empty{}

func (s taskService) on(id string, do func(t *task) error) (*emptypb.Empty, error) {
	t, err := s.task(id)
	if err != nil {
		return nil, err
	}
	return empty, do(t)
}

func (s taskService) Create(ctx context.Context, r *taskAPI.CreateTaskRequest) (*taskAPI.CreateTaskResponse, error) {
	options, err := optionsOf(r.Options)
	if err != nil {
		return nil, err
	}
	if err := checkRestore(r); err != nil {
		return nil, err
	}
	j := journal.Task{
		ID: r.ID, State: journal.TaskCreated, Bundle: r.Bundle, Terminal: r.Terminal, Checkpoint: r.Checkpoint,
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr, Options: options,
	}
	if err := s.create(j, mount.FromProto(r.Rootfs)); err != nil {
		return nil, err
	}
	return &taskAPI.CreateTaskResponse{}, nil
}

func optionsOf(a *anypb.Any) (journal.Options, error) {
	var o supervisorv1.TaskOptions
	if err := decode("task options", a, &o); err != nil {
		return journal.Options{}, err
	}
	return journal.Options{
		Runtime: o.Runtime, Root: o.Root, GlobalFlags: o.GlobalFlags,
		SystemdCgroup: o.SystemdCgroup, NoPivotRoot: o.NoPivotRoot, NoNewKeyring: o.NoNewKeyring,
		Kernel: o.Kernel, LogDirectory: o.LogDirectory, LogPath: o.LogPath, MaxLogLine: int(o.MaxLogLine),
		IOUID: o.IoUid, IOGID: o.IoGid, FailureLog: o.FailureLog,
		CallTimeout: time.Duration(o.CallTimeoutMs) * time.Millisecond,
	}, checkKernel(o.Kernel)
}

func (s taskService) Start(ctx context.Context, r *taskAPI.StartRequest) (*taskAPI.StartResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	var pid int
	if r.ExecID == "" {
		pid, err = t.start(ctx)
	} else {
		pid, err = t.execs.start(r.ExecID)
	}
	if err != nil {
		return nil, err
	}
	return &taskAPI.StartResponse{Pid: uint32(pid)}, nil
}

func (s taskService) Exec(ctx context.Context, r *taskAPI.ExecProcessRequest) (*emptypb.Empty, error) {
	return s.on(r.ID, func(t *task) error {
		if err := journal.CheckID(r.ExecID); err != nil {
			return err
		}
		if err := journal.CheckPaths(r.Stdin, r.Stdout, r.Stderr); err != nil {
			return err
		}
		return t.execs.add(r.ExecID, r.Terminal, stdio.Paths{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr}, r.Spec.GetValue())
	})
}

func (s taskService) Delete(ctx context.Context, r *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	var exit journal.Exit
	if r.ExecID == "" {
		exit, err = t.delete(context.WithoutCancel(ctx))
	} else {
		exit, err = t.execs.delete(r.ExecID)
	}
	if err != nil {
		return nil, err
	}
	return &taskAPI.DeleteResponse{Pid: uint32(exit.PID), ExitStatus: exit.Status, ExitedAt: timestamppb.New(exit.Time())}, nil
}

func (s taskService) Kill(ctx context.Context, r *taskAPI.KillRequest) (*emptypb.Empty, error) {
	return s.on(r.ID, func(t *task) error {
		sig := unix.Signal(r.Signal)
		switch {
		case sig <= 0 || sig > 64:
			return fmt.Errorf("signal %d does not exist: %w", r.Signal, errdefs.ErrInvalidArgument)
		case r.ExecID == "":
			return t.signal(ctx, sig, r.All)
		}
		return t.execs.signal(ctx, r.ExecID, sig)
	})
}

func (s taskService) Wait(ctx context.Context, r *taskAPI.WaitRequest) (*taskAPI.WaitResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	exit, err := t.wait(ctx, r.ExecID)
	if err != nil {
		return nil, err
	}
	if r.ExecID == "" {
		t.flush(ctx)
	}
	return &taskAPI.WaitResponse{ExitStatus: exit.Status, ExitedAt: timestamppb.New(exit.Time())}, nil
}

func (s taskService) State(ctx context.Context, r *taskAPI.StateRequest) (*taskAPI.StateResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.process(r.ExecID)
	if err != nil {
		return nil, err
	}
	state := &taskAPI.StateResponse{
		ID: t.id, ExecID: r.ExecID, Bundle: t.journal.Bundle,
		Pid: uint32(p.identity.PID), Status: statusOf(p, t.paused), Terminal: p.terminal,
		Stdin: p.paths.Stdin, Stdout: p.paths.Stdout, Stderr: p.paths.Stderr,
	}
	if p.state == stopped {
		state.ExitStatus, state.ExitedAt = p.exit.Status, timestamppb.New(p.exit.Time())
	}
	return state, nil
}

// statusOf returns the state of a process as a status of the Task API. paused is set if its
// container is paused. Pure.
func statusOf(p *process, paused bool) tasktypes.Status {
	switch {
	case p.state == stopped:
		return tasktypes.Status_STOPPED
	case p.state < running:
		return tasktypes.Status_CREATED
	case paused:
		return tasktypes.Status_PAUSED
	}
	return tasktypes.Status_RUNNING
}

func (s taskService) Pids(ctx context.Context, r *taskAPI.PidsRequest) (*taskAPI.PidsResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	state := t.first.state
	t.mu.Unlock()
	if state != running {
		return nil, t.notRunning()
	}
	pids, err := t.kernel.pids(ctx)
	if err != nil {
		return nil, err
	}
	response := &taskAPI.PidsResponse{}
	for _, pid := range pids {
		response.Processes = append(response.Processes, &tasktypes.ProcessInfo{Pid: uint32(pid)})
	}
	return response, nil
}

func (s taskService) Pause(ctx context.Context, r *taskAPI.PauseRequest) (*emptypb.Empty, error) {
	return s.on(r.ID, func(t *task) error { return t.freeze(ctx, "pause", true) })
}

func (s taskService) Resume(ctx context.Context, r *taskAPI.ResumeRequest) (*emptypb.Empty, error) {
	return s.on(r.ID, func(t *task) error { return t.freeze(ctx, "resume", false) })
}

func (s taskService) Update(ctx context.Context, r *taskAPI.UpdateTaskRequest) (*emptypb.Empty, error) {
	return s.on(r.ID, func(t *task) error { return t.kernel.update(ctx, r.Resources.GetValue()) })
}

func (s taskService) CloseIO(ctx context.Context, r *taskAPI.CloseIORequest) (*emptypb.Empty, error) {
	if !r.Stdin {
		return empty, nil
	}
	t, err := s.task(r.ID)
	if err != nil {
		return empty, s.closeForeignStdin(r.ID)
	}
	return empty, t.closeInput(r.ExecID)
}

func (s taskService) ResizePty(ctx context.Context, r *taskAPI.ResizePtyRequest) (*emptypb.Empty, error) {
	return s.on(r.ID, func(t *task) error {
		master, err := t.terminal(r.ExecID)
		if err != nil {
			return err
		}
		return stdio.Resize(master, r.Width, r.Height)
	})
}

func (s taskService) Stats(ctx context.Context, r *taskAPI.StatsRequest) (*taskAPI.StatsResponse, error) {
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	metrics, err := t.kernel.stats(ctx)
	if err != nil {
		return nil, err
	}
	a, err := anypb.New(metrics)
	if err != nil {
		return nil, err
	}
	return &taskAPI.StatsResponse{Stats: a}, nil
}

func (s taskService) Connect(ctx context.Context, r *taskAPI.ConnectRequest) (*taskAPI.ConnectResponse, error) {
	response := &taskAPI.ConnectResponse{ShimPid: uint32(os.Getpid()), Version: s.version}
	if r.ID == "" {
		return response, nil
	}
	t, err := s.task(r.ID)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	response.TaskPid = uint32(t.first.identity.PID)
	return response, nil
}

func (s taskService) Checkpoint(ctx context.Context, r *taskAPI.CheckpointTaskRequest) (*emptypb.Empty, error) {
	return s.on(r.ID, func(t *task) error { return t.kernel.checkpoint(ctx, r.Path, r.Options) })
}

// checkpointOptions decodes the options of a checkpoint; without options, into keeps its defaults.
func checkpointOptions(a *anypb.Any, into proto.Message) error {
	if a == nil {
		return nil
	}
	return decode("checkpoint options", a, into)
}

// Shutdown ends this process. It fails while there are tasks, unless Now is set, which leaves the
// tasks to a successor.
func (s taskService) Shutdown(ctx context.Context, r *taskAPI.ShutdownRequest) (*emptypb.Empty, error) {
	if err := s.close(r.Now); err != nil {
		return nil, err
	}
	s.shutdown()
	return empty, nil
}

// closeInput closes the supervisor's write end of a process's stdin. The process reads the end of
// input once every other writer has closed its end.
func (t *task) closeInput(execID string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.process(execID)
	if err != nil {
		return err
	}
	p.closeStdin()
	if execID != "" {
		return nil
	}
	t.journal.StdinClosed = true
	return t.save()
}

// takeInput journals whether stdin is closed when the input of the attached client ends. It returns
// the previous value.
func (t *task) takeInput(taken bool) (before bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, t.journal.StdinTaken = t.journal.StdinTaken, taken
	return before, t.save()
}

// terminal returns the master of a process's terminal.
func (t *task) terminal(execID string) (*os.File, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, err := t.process(execID)
	if err != nil {
		return nil, err
	}
	if p.master == nil {
		return nil, fmt.Errorf("%s has no terminal: %w", filepath.Join(t.id, execID), errdefs.ErrFailedPrecondition)
	}
	return p.master, nil
}

// checkRestore refuses a parent checkpoint and a relative path.
func checkRestore(r *taskAPI.CreateTaskRequest) error {
	switch {
	case r.ParentCheckpoint != "":
		return fmt.Errorf("restoring a checkpoint on top of another is not supported: %w", errdefs.ErrNotImplemented)
	case r.Checkpoint == "":
		return nil
	case !filepath.IsAbs(r.Checkpoint):
		return fmt.Errorf("the checkpoint directory must be an absolute path, not %q: %w", r.Checkpoint, errdefs.ErrInvalidArgument)
	}
	return nil
}
