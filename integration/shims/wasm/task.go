package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	runc "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/shims/standin"
)

func init() { standin.Register(newService) }

// service is the shim of one pod: containerd-shimkit/src/sandbox/shim/local.rs.
type service struct {
	runc    task.TTRPCTaskService
	runtime string
	daemon  *daemon
}

func newService(ctx context.Context, publisher shim.Publisher, down shutdown.Service) (*service, error) {
	settings, err := standin.Settings[shims.Wasm](os.Getenv(settingsVariable))
	if err != nil {
		return nil, err
	}
	if settings.PublishBinary {
		publisher = standin.ByBinary{Publisher: publisher}
	}
	inner, err := runc.NewTaskService(ctx, publisher, down)
	if err != nil {
		return nil, err
	}
	d, err := dial(standin.Option("address"), standin.Option("namespace"))
	if err != nil {
		return nil, err
	}
	return &service{runc: inner, runtime: settings.Runtime, daemon: d}, nil
}

// Create imitates task_create in local.rs, and the creation of an instance:
// containerd-shim-wasm/src/sys/unix/container/instance.rs.
func (s *service) Create(ctx context.Context, r *task.CreateTaskRequest) (*task.CreateTaskResponse, error) {
	if r.Terminal {
		return nil, errgrpc.ToGRPC(fmt.Errorf("terminal is not supported: %w", errdefs.ErrInvalidArgument))
	}
	if r.Checkpoint != "" || r.ParentCheckpoint != "" {
		return nil, errgrpc.ToGRPC(fmt.Errorf("checkpoint is not supported: %w", errdefs.ErrNotImplemented))
	}
	spec, err := standin.ReadSpec(r.Bundle)
	if err != nil {
		return nil, err
	}
	if err := s.mountRoot(r); err != nil {
		return nil, err
	}
	modules, err := s.daemon.modules(ctx, r.ID, compile)
	if err != nil {
		log.G(ctx).WithError(err).WithField("container", r.ID).Warn("Error obtaining wasm layers. Will attempt to use files inside container image")
	}
	if err := s.makeModule(r.Bundle, spec, modules); err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("container %s: %w", r.ID, err))
	}
	if r.Options, err = typeurl.MarshalAnyToProto(&runcoptions.Options{BinaryName: s.runtime}); err != nil {
		return nil, err
	}
	return s.runc.Create(ctx, r)
}

// mountRoot mounts the root filesystem, because the shim must read it.
func (s *service) mountRoot(r *task.CreateTaskRequest) error {
	root := rootOf(r.Bundle)
	if err := os.MkdirAll(root, 0o711); err != nil {
		return err
	}
	mounts := make([]mount.Mount, len(r.Rootfs))
	for i, m := range r.Rootfs {
		mounts[i] = mount.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options}
	}
	r.Rootfs = []*types.Mount{}
	return mount.All(mounts, root)
}

func rootOf(bundle string) string { return filepath.Join(bundle, "rootfs") }

// makeModule has the container run its module, if it has one: a layer of the image, or else its
// entrypoint if that is a module and not a program
// (containerd-shim-wasm/src/sys/unix/container/executor.rs, ty).
func (s *service) makeModule(bundle string, spec *specs.Spec, modules []loaded) error {
	if len(modules) > 1 {
		return fmt.Errorf("only a single module is supported when using images with OCI layers: %w", errdefs.ErrInvalidArgument)
	}
	var m loaded
	if len(modules) == 1 {
		m = modules[0]
	} else {
		body, linux, err := entrypoint(rootOf(bundle), spec.Process)
		if err != nil {
			return err
		}
		if linux {
			return nil
		}
		m.module = body
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir := filepath.Join(bundle, "wasm")
	if err := os.MkdirAll(filepath.Join(dir, "compiled"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "module"), m.module, 0o644); err != nil {
		return err
	}
	inside := map[string]string{insideShim: self, insideModule: filepath.Join(dir, "module")}
	if m.compiled != nil {
		if err := unpackCompiled(m.compiled, filepath.Join(dir, "compiled")); err != nil {
			return err
		}
		inside[insideCompiled] = filepath.Join(dir, "compiled")
	}
	for at, source := range inside {
		spec.Mounts = append(spec.Mounts, specs.Mount{Destination: at, Source: source, Type: "bind", Options: []string{"bind", "ro"}})
	}
	spec.Process.Args = append([]string{insideShim, moduleCommand}, spec.Process.Args...)
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, "config.json"), text, 0o600)
}

// entrypoint returns the file that a container is to run, and whether it is a Linux program
// (executor.rs, is_linux_container).
func entrypoint(root string, p *specs.Process) (body []byte, linux bool, err error) {
	if p == nil || len(p.Args) == 0 {
		return nil, false, fmt.Errorf("no entrypoint provided: %w", errdefs.ErrInvalidArgument)
	}
	name, _, _ := strings.Cut(p.Args[0], "#")
	in, err := os.OpenRoot(root)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = in.Close() }()
	for _, dir := range searched(name, p) {
		path := strings.TrimPrefix(filepath.Join("/", dir, name), "/")
		info, err := in.Stat(path)
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		if body, err = in.ReadFile(path); err != nil {
			return nil, false, err
		}
		magic := string(body[:min(4, len(body))])
		runs := info.Mode()&1 != 0 && (magic == "\x7fELF" || strings.HasPrefix(magic, "#!"))
		if !runs && magic != "\x00asm" {
			return nil, false, fmt.Errorf("%s is neither a program nor a Wasm file: %w", name, errdefs.ErrInvalidArgument)
		}
		return body, runs, nil
	}
	return nil, false, fmt.Errorf("%s: arg0 must be a path to a Wasm file: %w", name, errdefs.ErrInvalidArgument)
}

// searched returns the directories that are searched for a name.
func searched(name string, p *specs.Process) []string {
	if strings.Contains(name, "/") {
		if filepath.IsAbs(name) {
			return []string{"/"}
		}
		return []string{p.Cwd}
	}
	var dirs []string
	for _, e := range p.Env {
		if path, ok := strings.CutPrefix(e, "PATH="); ok {
			dirs = filepath.SplitList(path)
		}
	}
	return append(dirs, p.Cwd)
}

func (s *service) Start(ctx context.Context, r *task.StartRequest) (*task.StartResponse, error) {
	if r.ExecID != "" {
		return nil, noExec()
	}
	return s.runc.Start(ctx, r)
}

// noExec is the error for other processes than a container's first one, which runwasi does not
// have.
func noExec() error {
	return errgrpc.ToGRPC(fmt.Errorf("exec is not supported: %w", errdefs.ErrNotImplemented))
}

// notImplemented answers calls that runwasi does not implement, as its library does.
func notImplemented[Request, Response any](call string) func(context.Context, *Request) (*Response, error) {
	return func(context.Context, *Request) (*Response, error) {
		return nil, errgrpc.ToGRPC(fmt.Errorf("/containerd.task.v2.Task/%s is not supported: %w", call, errdefs.ErrNotImplemented))
	}
}

func (s *service) Kill(ctx context.Context, r *task.KillRequest) (*emptypb.Empty, error) {
	if r.ExecID != "" {
		return nil, noExec()
	}
	return s.runc.Kill(ctx, r)
}

func (s *service) Delete(ctx context.Context, r *task.DeleteRequest) (*task.DeleteResponse, error) {
	if r.ExecID != "" {
		return nil, noExec()
	}
	return s.runc.Delete(ctx, r)
}

func (s *service) State(ctx context.Context, r *task.StateRequest) (*task.StateResponse, error) {
	if r.ExecID != "" {
		return nil, noExec()
	}
	return s.runc.State(ctx, r)
}

func (s *service) Wait(ctx context.Context, r *task.WaitRequest) (*task.WaitResponse, error) {
	if r.ExecID != "" {
		return nil, noExec()
	}
	return s.runc.Wait(ctx, r)
}

// RegisterTTRPC serves version 2 of the Task API, as containerd's library for Rust does. On the
// wire its messages are the same as those of version 3.
//
//nolint:unparam // an interface of the library
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	server.RegisterService("containerd.task.v2.Task", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"State": standin.Method(s.State), "Create": standin.Method(s.Create), "Start": standin.Method(s.Start), "Delete": standin.Method(s.Delete),
		"Kill": standin.Method(s.Kill), "Wait": standin.Method(s.Wait), "Stats": standin.Method(s.runc.Stats), "Connect": standin.Method(s.runc.Connect),
		"Shutdown":   standin.Method(s.runc.Shutdown),
		"Pids":       standin.Method(notImplemented[task.PidsRequest, task.PidsResponse]("Pids")),
		"Pause":      standin.Method(notImplemented[task.PauseRequest, emptypb.Empty]("Pause")),
		"Resume":     standin.Method(notImplemented[task.ResumeRequest, emptypb.Empty]("Resume")),
		"Checkpoint": standin.Method(notImplemented[task.CheckpointTaskRequest, emptypb.Empty]("Checkpoint")),
		"Exec":       standin.Method(notImplemented[task.ExecProcessRequest, emptypb.Empty]("Exec")),
		"ResizePty":  standin.Method(notImplemented[task.ResizePtyRequest, emptypb.Empty]("ResizePty")),
		"CloseIO":    standin.Method(notImplemented[task.CloseIORequest, emptypb.Empty]("CloseIO")),
		"Update":     standin.Method(notImplemented[task.UpdateTaskRequest, emptypb.Empty]("Update")),
	}})
	return nil
}
