package main

import (
	"github.com/containerd/ttrpc"

	"github.com/berth-cri/berth/integration/shims/common"
)

// RegisterTTRPC serves version 2 of the Task API, which is Kata's. Its messages are
// on the wire what those of version 3 are.
//
//nolint:unparam // it is how the library asks for it
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	server.RegisterService("containerd.task.v2.Task", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"State": common.Method(s.State), "Create": common.Method(s.Create), "Start": common.Method(s.Start), "Delete": common.Method(s.Delete),
		"Pids": common.Method(s.Pids), "Pause": common.Method(s.Pause), "Resume": common.Method(s.Resume), "Checkpoint": common.Method(s.Checkpoint),
		"Kill": common.Method(s.Kill), "Exec": common.Method(s.Exec), "ResizePty": common.Method(s.ResizePty), "CloseIO": common.Method(s.CloseIO),
		"Update": common.Method(s.Update), "Wait": common.Method(s.Wait), "Stats": common.Method(s.Stats), "Connect": common.Method(s.Connect),
		"Shutdown": common.Method(s.Shutdown),
	}})
	return nil
}
