package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runc "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/shims/standin"
)

func init() { standin.Register(newService) }

// service is the shim of one pod: pkg/containerd-shim-v2/service.go. As in Kata, every call except
// Wait holds its lock until it returns.
type service struct {
	context  context.Context
	settings shims.Kata
	runc     task.TTRPCTaskService
	sandbox  string
	// listening is a duplicate of the socket, for after the library has closed the original.
	listening *os.File

	mu         sync.Mutex
	containers map[string]bool // guarded by mu: those whose Create has succeeded

	made sync.Mutex // guards the fields below, which a Create whose caller gave up still changes
	kept *state
	pid  int // of the machine, after its Create
}

func newService(ctx context.Context, publisher shim.Publisher, down shutdown.Service) (*service, error) {
	settings, err := standin.Settings[shims.Kata](os.Getenv(settingsVariable))
	if err != nil {
		return nil, err
	}
	if settings.PublishBinary {
		publisher = standin.ByBinary{Publisher: publisher}
	}
	socket, err := unix.FcntlInt(socketDescriptor, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	inner, err := runc.NewTaskService(ctx, publisher, down)
	if err != nil {
		return nil, err
	}
	sandbox := flag.Lookup("id").Value.String()
	return &service{
		context: ctx, settings: settings, runc: inner, sandbox: sandbox, containers: map[string]bool{},
		listening: os.NewFile(uintptr(socket), "socket"),
		kept:      &state{Sandbox: sandbox, Containers: map[string]bool{}, Settings: settings},
	}, nil
}

// Create still creates the container after its caller gave up, though it returns an error:
// service.go, Create.
func (s *service) Create(ctx context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := make(chan error, 1)
	go func() { ended <- s.create(context.WithoutCancel(ctx), r) }()
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("create container timeout: %v", r.ID)
	case err := <-ended:
		if err != nil {
			return nil, err
		}
	}
	s.containers[r.ID] = true
	return &task.CreateTaskResponse{Pid: s.machine()}, nil
}

func (s *service) create(ctx context.Context, r *task.CreateTaskRequest) error {
	if _, err := configPath(r.Options); err != nil {
		return err
	}
	spec, err := standin.ReadSpec(r.Bundle)
	if err != nil {
		return err
	}
	if r.ID == s.sandbox {
		if err := s.boot(ctx, r.Bundle, spec); err != nil {
			return err
		}
	}
	if network := networkOf(spec); s.settings.Network && network != nil {
		*network = fmt.Sprintf("/proc/%d/ns/net", s.machine())
	}
	s.made.Lock()
	s.kept.Containers[r.ID] = true
	spec.Linux.CgroupsPath = filepath.Join(s.kept.Cgroup, r.ID)
	err = s.kept.save()
	s.made.Unlock()
	if err != nil {
		return err
	}
	if r.ID == s.sandbox && s.settings.FirstProgram != "" {
		if err := s.replaceFirst(r, spec); err != nil {
			return err
		}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.Bundle, "config.json"), text, 0o600); err != nil {
		return err
	}
	if r.Options, err = typeurl.MarshalAnyToProto(&runcoptions.Options{BinaryName: s.settings.Runtime}); err != nil {
		return err
	}
	_, err = s.runc.Create(ctx, r)
	return err
}

// replaceFirst replaces the first container by one of the guest: agent's
// confidential_data_hub/image.rs, unpack_pause_image.
func (s *service) replaceFirst(r *task.CreateTaskRequest, spec *specs.Spec) error {
	body, err := os.ReadFile(s.settings.FirstProgram)
	if err != nil {
		return err
	}
	root := filepath.Join(r.Bundle, "guest")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "busybox"), body, 0o755); err != nil {
		return err
	}
	r.Rootfs = []*types.Mount{{Type: "bind", Source: root, Options: []string{"rbind"}}}
	spec.Process.Args = []string{"/busybox", "sleep", "3600"}
	return nil
}

// boot starts the machine. It counts as running only after its agent answers, which HoldCreate
// delays: virtcontainers/sandbox.go, startVM.
func (s *service) boot(ctx context.Context, bundle string, spec *specs.Spec) error {
	cgroup, err := machineCgroup(spec.Linux.CgroupsPath)
	if err != nil {
		return err
	}
	// The shim and all its later child processes are in the machine's cgroup: sandbox.go,
	// setupResourceController.
	if err := enterCgroup(cgroup); err != nil {
		return err
	}
	pid, err := startMachine(s.sandbox, bundle, s.settings, s.listening)
	if err != nil {
		return err
	}
	s.made.Lock()
	s.kept.Machine, s.kept.Cgroup = pid, cgroup
	err = s.kept.save()
	s.made.Unlock()
	if err != nil {
		return err
	}
	if network := networkOf(spec); s.settings.Network && network != nil {
		if err := connect(*network, pid); err != nil {
			return err
		}
	}
	if err := hold(ctx, s.settings.HoldCreate); err != nil {
		return err
	}
	s.made.Lock()
	s.pid = pid
	s.made.Unlock()
	go s.outlive(pid)
	return nil
}

// outlive kills the containers in the machine when the machine exits.
func (s *service) outlive(pid int) {
	awaitEnd(pid)
	s.made.Lock()
	defer s.made.Unlock()
	for id := range s.kept.Containers {
		_, _ = s.runc.Kill(s.context, &task.KillRequest{ID: id, Signal: uint32(unix.SIGKILL), All: true})
	}
}

// machine is the pid that every call returns: service.go, hpid.
func (s *service) machine() uint32 {
	s.made.Lock()
	defer s.made.Unlock()
	return uint32(s.pid)
}

func (s *service) Start(ctx context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.runc.Start(ctx, r); err != nil {
		return nil, err
	}
	if r.ID == s.sandbox && r.ExecID == "" {
		go func() {
			// The machine stops when the pod's first container exits: wait.go, wait.
			if _, err := s.runc.Wait(s.context, &task.WaitRequest{ID: r.ID}); err == nil {
				s.stopMachine()
			}
		}()
	}
	return &task.StartResponse{Pid: s.machine()}, nil
}

func (s *service) stopMachine() {
	s.made.Lock()
	defer s.made.Unlock()
	if s.kept.Machine > 0 {
		_ = unix.Kill(s.kept.Machine, unix.SIGKILL)
		awaitEnd(s.kept.Machine)
	}
}

// isThere reports whether a file exists; an empty name does not.
func isThere(file string) bool {
	_, err := os.Stat(file)
	return file != "" && err == nil
}

// Kill ignores the exec id if all processes are to be killed: virtcontainers/kata_agent.go,
// signalProcess; service.go, Kill.
func (s *service) Kill(ctx context.Context, r *task.KillRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ExecID == "" {
		r.All = true
	}
	if r.All {
		r.ExecID = ""
	}
	if isThere(s.settings.DropKill) {
		return &emptypb.Empty{}, nil
	}
	if isThere(s.settings.FailKill) {
		return nil, errors.New("agent: connection is closed")
	}
	return s.runc.Kill(ctx, r)
}

func (s *service) Delete(ctx context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, err := s.runc.Delete(ctx, r)
	if err != nil {
		return nil, err
	}
	answer.Pid = s.machine()
	if r.ExecID != "" {
		return answer, nil
	}
	delete(s.containers, r.ID)
	if r.ID == s.sandbox {
		s.stopMachine()
		s.made.Lock()
		defer s.made.Unlock()
		leaveCgroup(s.kept.Cgroup)
		return answer, s.kept.end()
	}
	s.made.Lock()
	defer s.made.Unlock()
	if !s.settings.ForgetsNothing {
		delete(s.kept.Containers, r.ID)
	}
	return answer, s.kept.save()
}

// Shutdown ends the shim at once, but the machine only if its Create has succeeded: service.go,
// Shutdown.
func (s *service) Shutdown(ctx context.Context, r *task.ShutdownRequest) (*emptypb.Empty, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.containers) > 0 {
		return &emptypb.Empty{}, nil
	}
	if pid := s.machine(); pid > 0 {
		_ = unix.Kill(int(pid), unix.SIGKILL)
	}
	return s.runc.Shutdown(ctx, r)
}

func (s *service) State(ctx context.Context, r *task.StateRequest) (*task.StateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer, err := s.runc.State(ctx, r)
	if err == nil {
		answer.Pid = s.machine()
	}
	return answer, err
}

func (s *service) Wait(ctx context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	return s.runc.Wait(ctx, r)
}

func (s *service) Connect(context.Context, *task.ConnectRequest) (*task.ConnectResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &task.ConnectResponse{ShimPid: uint32(os.Getpid()), TaskPid: s.machine()}, nil
}

func (s *service) Pids(ctx context.Context, r *task.PidsRequest) (*task.PidsResponse, error) {
	return locked(ctx, s, r, s.runc.Pids)
}

func (s *service) Pause(ctx context.Context, r *task.PauseRequest) (*emptypb.Empty, error) {
	return locked(ctx, s, r, s.runc.Pause)
}

func (s *service) Resume(ctx context.Context, r *task.ResumeRequest) (*emptypb.Empty, error) {
	return locked(ctx, s, r, s.runc.Resume)
}

func (s *service) Checkpoint(ctx context.Context, r *task.CheckpointTaskRequest) (*emptypb.Empty, error) {
	return locked(ctx, s, r, s.runc.Checkpoint)
}

func (s *service) Exec(ctx context.Context, r *task.ExecProcessRequest) (*emptypb.Empty, error) {
	log.G(s.context).WithField("exec", r.ExecID).Warn("Exec() start") // as in service.go, Exec
	return locked(ctx, s, r, s.runc.Exec)
}

func (s *service) ResizePty(ctx context.Context, r *task.ResizePtyRequest) (*emptypb.Empty, error) {
	return locked(ctx, s, r, s.runc.ResizePty)
}

func (s *service) CloseIO(ctx context.Context, r *task.CloseIORequest) (*emptypb.Empty, error) {
	return locked(ctx, s, r, s.runc.CloseIO)
}

func (s *service) Update(ctx context.Context, r *task.UpdateTaskRequest) (*emptypb.Empty, error) {
	return locked(ctx, s, r, s.runc.Update)
}

func (s *service) Stats(ctx context.Context, r *task.StatsRequest) (*task.StatsResponse, error) {
	return locked(ctx, s, r, s.runc.Stats)
}

func locked[Request, Response any](ctx context.Context, s *service, r *Request, call func(context.Context, *Request) (*Response, error)) (*Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return call(ctx, r)
}

// RegisterTTRPC serves version 2 of the Task API, as Kata does. On the wire its messages are the
// same as those of version 3.
//
//nolint:unparam // an interface of the library
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	server.RegisterService("containerd.task.v2.Task", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"State": standin.Method(s.State), "Create": standin.Method(s.Create), "Start": standin.Method(s.Start), "Delete": standin.Method(s.Delete),
		"Pids": standin.Method(s.Pids), "Pause": standin.Method(s.Pause), "Resume": standin.Method(s.Resume), "Checkpoint": standin.Method(s.Checkpoint),
		"Kill": standin.Method(s.Kill), "Exec": standin.Method(s.Exec), "ResizePty": standin.Method(s.ResizePty), "CloseIO": standin.Method(s.CloseIO),
		"Update": standin.Method(s.Update), "Wait": standin.Method(s.Wait), "Stats": standin.Method(s.Stats), "Connect": standin.Method(s.Connect),
		"Shutdown": standin.Method(s.Shutdown),
	}})
	return nil
}
