package main

import (
	"context"

	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// RegisterTTRPC serves version 2 of the Task API, which is that of containerd's library
// for Rust. Its messages are on the wire what those of version 3 are.
//
//nolint:unparam // it is how the library asks for it
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	server.RegisterService("containerd.task.v2.Task", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"State": method(s.State), "Create": method(s.Create), "Start": method(s.Start), "Delete": method(s.Delete),
		"Kill": method(s.Kill), "Wait": method(s.Wait), "Stats": method(s.runc.Stats), "Connect": method(s.runc.Connect),
		"Shutdown":   method(s.runc.Shutdown),
		"Pids":       method(notImplemented[task.PidsRequest, task.PidsResponse]("Pids")),
		"Pause":      method(notImplemented[task.PauseRequest, emptypb.Empty]("Pause")),
		"Resume":     method(notImplemented[task.ResumeRequest, emptypb.Empty]("Resume")),
		"Checkpoint": method(notImplemented[task.CheckpointTaskRequest, emptypb.Empty]("Checkpoint")),
		"Exec":       method(notImplemented[task.ExecProcessRequest, emptypb.Empty]("Exec")),
		"ResizePty":  method(notImplemented[task.ResizePtyRequest, emptypb.Empty]("ResizePty")),
		"CloseIO":    method(notImplemented[task.CloseIORequest, emptypb.Empty]("CloseIO")),
		"Update":     method(notImplemented[task.UpdateTaskRequest, emptypb.Empty]("Update")),
	}})
	return nil
}

func method[Request, Response any](call func(context.Context, *Request) (*Response, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		r := new(Request)
		if err := unmarshal(r); err != nil {
			return nil, err
		}
		return call(ctx, r)
	}
}
