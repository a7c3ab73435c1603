package main

import (
	"context"

	"github.com/containerd/ttrpc"
)

// RegisterTTRPC serves version 2 of the Task API, which is Kata's. Its messages are
// on the wire what those of version 3 are.
//
//nolint:unparam // it is how the library asks for it
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	server.RegisterService("containerd.task.v2.Task", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"State": method(s.State), "Create": method(s.Create), "Start": method(s.Start), "Delete": method(s.Delete),
		"Pids": method(s.Pids), "Pause": method(s.Pause), "Resume": method(s.Resume), "Checkpoint": method(s.Checkpoint),
		"Kill": method(s.Kill), "Exec": method(s.Exec), "ResizePty": method(s.ResizePty), "CloseIO": method(s.CloseIO),
		"Update": method(s.Update), "Wait": method(s.Wait), "Stats": method(s.Stats), "Connect": method(s.Connect),
		"Shutdown": method(s.Shutdown),
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
