package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	events "github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"
)

// ServeEvents listens where foreign shims publish and calls oom with the task
// id of every OOM they report, until ctx ends. All other facts come from Wait,
// which misses nothing while the daemon is down.
func (m *Manager) ServeEvents(ctx context.Context, oom func(task string)) error {
	if err := os.Remove(m.config.Events); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", m.config.Events)
	if err != nil {
		return fmt.Errorf("listen for shim events: %w", err)
	}
	srv, err := ttrpc.NewServer()
	if err != nil {
		return errors.Join(err, l.Close())
	}
	eventsapi.RegisterTTRPCEventsService(srv, &sink{oom: oom})
	go func() { _ = srv.Serve(ctx, l) }()
	go func() { <-ctx.Done(); _ = srv.Close() }()
	return nil
}

type sink struct{ oom func(string) }

func (s *sink) Forward(_ context.Context, r *eventsapi.ForwardRequest) (*emptypb.Empty, error) {
	if r.Envelope != nil && r.Envelope.Event != nil && typeurl.Is(r.Envelope.Event, &events.TaskOOM{}) {
		var e events.TaskOOM
		if err := typeurl.UnmarshalTo(r.Envelope.Event, &e); err == nil {
			s.oom(e.ContainerID)
		}
	}
	return &emptypb.Empty{}, nil
}
