package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/pkg/engine/crilog"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/output"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"
)

// supervisorService implements berth.supervisor.v1.Supervisor.
type supervisorService struct {
	*supervisor
}

func (s supervisorService) Info(ctx context.Context, _ *supervisorv1.InfoRequest) (*supervisorv1.InfoResponse, error) {
	digest, err := s.digest()
	if err != nil {
		return nil, err
	}
	info := &supervisorv1.InfoResponse{Pid: uint32(os.Getpid()), Version: s.version, ExecutableDigest: digest}
	for _, t := range s.all() {
		t.mu.Lock()
		info.Tasks = append(info.Tasks, &supervisorv1.TaskInfo{
			Id: t.id, State: stateName[statusOf(t.first, t.paused)], Pid: uint32(t.first.identity.PID),
		})
		t.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.foreign {
		info.Tasks = append(info.Tasks, &supervisorv1.TaskInfo{Id: id, State: string(journal.TaskStdio)})
	}
	return info, nil
}

var stateName = map[tasktypes.Status]string{
	tasktypes.Status_CREATED: "created",
	tasktypes.Status_RUNNING: "running",
	tasktypes.Status_PAUSED:  "paused",
	tasktypes.Status_STOPPED: "stopped",
}

func (s supervisorService) ReopenLog(ctx context.Context, r *supervisorv1.ReopenLogRequest) (*emptypb.Empty, error) {
	o, _, err := s.outputOf(r.Id)
	if err != nil {
		return nil, err
	}
	err = o.Log.Reopen()
	if errors.Is(err, crilog.ErrClosed) {
		return nil, fmt.Errorf("container %q has closed its output: %w", r.Id, errdefs.ErrFailedPrecondition)
	}
	return empty, err
}

func (s supervisorService) Terminal(ctx context.Context, r *supervisorv1.TerminalRequest) (*supervisorv1.TerminalResponse, error) {
	t, err := s.task(r.Id)
	if err != nil {
		return nil, err
	}
	master, err := t.terminal(r.ExecId)
	if err != nil {
		return nil, err
	}
	conn, err := master.SyscallConn()
	if err != nil {
		return nil, err
	}
	response := &supervisorv1.TerminalResponse{}
	err = conn.Control(func(fd uintptr) { response.Fd = int32(fd) })
	if err != nil {
		return nil, fmt.Errorf("the terminal is closed: %w", errdefs.ErrFailedPrecondition)
	}
	return response, nil
}

func (s supervisorService) OpenStdio(ctx context.Context, r *supervisorv1.OpenStdioRequest) (*emptypb.Empty, error) {
	return empty, s.openForeign(journal.Task{
		ID: r.Id, State: journal.TaskStdio, Terminal: r.Terminal,
		Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
		Options: journal.Options{LogDirectory: r.LogDirectory, LogPath: r.LogPath, MaxLogLine: int(r.MaxLogLine)},
	})
}

func (s supervisorService) FlushStdio(ctx context.Context, r *supervisorv1.FlushStdioRequest) (*emptypb.Empty, error) {
	return empty, s.flushForeign(ctx, r.Id)
}

func (s supervisorService) CloseStdio(ctx context.Context, r *supervisorv1.CloseStdioRequest) (*emptypb.Empty, error) {
	return empty, s.closeForeign(r.Id)
}

func (s supervisorService) Attach(ctx context.Context, r *supervisorv1.AttachRequest) (*emptypb.Empty, error) {
	if err := journal.CheckPaths(r.Stdin, r.Stdout, r.Stderr); err != nil {
		return nil, err
	}
	o, stdin, err := s.outputOf(r.Id)
	if err != nil {
		return nil, err
	}
	end := output.InputEnd{Detach: r.UntilStdinEnds}
	if !r.CloseStdin || stdin == nil {
		return empty, o.Attach(s.processes, stdio.Paths{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr}, stdin, end)
	}
	end.CloseStdin = func() { s.closeStdin(r.Id) }
	before, err := s.takeStdin(r.Id, true)
	if err != nil {
		return nil, err
	}
	err = o.Attach(s.processes, stdio.Paths{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr}, stdin, end)
	if err != nil {
		_, undone := s.takeStdin(r.Id, before)
		err = errors.Join(err, undone)
	}
	return empty, err
}

func (s supervisorService) takeStdin(id string, taken bool) (before bool, err error) {
	if t, err := s.task(id); err == nil {
		return t.takeInput(taken)
	}
	return s.takeForeignStdin(id, taken)
}

// closeStdin closes the stdin of a container, which may have been removed already.
func (s supervisorService) closeStdin(id string) {
	t, err := s.task(id)
	if err == nil {
		err = t.closeInput("")
	} else {
		err = s.closeForeignStdin(id)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		log.L.WithError(err).WithField("container", id).Warn("Failed to close container stdin")
	}
}
