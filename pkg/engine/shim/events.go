package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"

	events "github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/pkg/atomicfile"
)

// ServeEvents listens where foreign shims publish and calls oom with the task
// id of every OOM they report, until ctx ends. All other facts come from Wait,
// which misses nothing while the daemon is down.
func (m *ForeignShims) ServeEvents(ctx context.Context, oom func(task string)) error {
	link := m.config.API + ".ttrpc"
	if err := errors.Join(atomicfile.Remove(m.config.Events), atomicfile.Remove(link)); err != nil {
		return err
	}
	l, err := net.Listen("unix", m.config.Events)
	if err != nil {
		return fmt.Errorf("listen for shim events: %w", err)
	}
	if err := os.Symlink(filepath.Base(m.config.Events), link); err != nil {
		return errors.Join(fmt.Errorf("listen for shim events: %w", err), l.Close())
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

func (s *sink) Forward(ctx context.Context, r *eventsapi.ForwardRequest) (_ *emptypb.Empty, err error) {
	// Any shim may call this, and any type that is linked in be asked for.
	defer func() {
		if p := recover(); p != nil {
			log.G(ctx).WithFields(log.Fields{"panic": fmt.Sprint(p), "stack": string(debug.Stack())}).Error("Shim event caused a panic; please report this with the stack")
			err = fmt.Errorf("read event: %w", errdefs.ErrInternal)
		}
	}()
	oom := &events.TaskOOM{}
	if event := r.GetEnvelope().GetEvent(); typeurl.Is(event, oom) && typeurl.UnmarshalTo(event, oom) == nil {
		s.oom(oom.ContainerID)
	}
	return &emptypb.Empty{}, nil
}
