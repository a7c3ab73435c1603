package main

import (
	task "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/integration/shims/common"
)

// RegisterTTRPC serves version 2 of the Task API, which is that of containerd's library
// for Rust. Its messages are on the wire what those of version 3 are.
//
//nolint:unparam // it is how the library asks for it
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	server.RegisterService("containerd.task.v2.Task", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"State": common.Method(s.State), "Create": common.Method(s.Create), "Start": common.Method(s.Start), "Delete": common.Method(s.Delete),
		"Kill": common.Method(s.Kill), "Wait": common.Method(s.Wait), "Stats": common.Method(s.runc.Stats), "Connect": common.Method(s.runc.Connect),
		"Shutdown":   common.Method(s.runc.Shutdown),
		"Pids":       common.Method(notImplemented[task.PidsRequest, task.PidsResponse]("Pids")),
		"Pause":      common.Method(notImplemented[task.PauseRequest, emptypb.Empty]("Pause")),
		"Resume":     common.Method(notImplemented[task.ResumeRequest, emptypb.Empty]("Resume")),
		"Checkpoint": common.Method(notImplemented[task.CheckpointTaskRequest, emptypb.Empty]("Checkpoint")),
		"Exec":       common.Method(notImplemented[task.ExecProcessRequest, emptypb.Empty]("Exec")),
		"ResizePty":  common.Method(notImplemented[task.ResizePtyRequest, emptypb.Empty]("ResizePty")),
		"CloseIO":    common.Method(notImplemented[task.CloseIORequest, emptypb.Empty]("CloseIO")),
		"Update":     common.Method(notImplemented[task.UpdateTaskRequest, emptypb.Empty]("Update")),
	}})
	return nil
}
