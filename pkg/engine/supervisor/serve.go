package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime/debug"
	"time"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	supervisorv1 "github.com/berth-cri/berth/proto/berth/supervisor/v1"

	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// Config holds what a supervisor needs to serve. All fields but Inherited and Patience are
// required.
type Config struct {
	// Dir is the supervisor's own directory; its journals are below it.
	Dir string
	// Listener is the socket to serve. Serve closes it.
	Listener net.Listener
	// Version is returned by Info and Connect.
	Version string
	// Inherited are the descriptors that the daemon kept from a predecessor,
	// by task id. Serve owns them.
	Inherited map[string]journal.Inherited
	// Patience is how long a supervisor without tasks waits for a daemon; zero is DefaultPatience.
	Patience time.Duration
}

// Serve takes over the tasks that a predecessor left in the directory and serves until Shutdown is
// called or ctx ends; containers keep running in both cases. It also returns when it has no tasks
// and no client was connected for Patience. If another process serves the directory, it fails with
// errdefs.ErrAlreadyExists and changes nothing.
//
// Serve makes the process a subreaper and reaps every child that processes.Set has neither started
// nor adopted: no other code of the process may start processes.
func Serve(ctx context.Context, c Config) error {
	defer c.Listener.Close()
	closeRest := func() {
		maps.DeleteFunc(c.Inherited, func(_ string, i journal.Inherited) bool { i.Close(); return true })
	}
	defer closeRest()
	locked, err := journal.Lock(c.Dir)
	if err != nil {
		return err
	}
	defer locked.Close()
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become a subreaper: %w", err)
	}
	ctx, shutdown := context.WithCancel(ctx)
	defer shutdown()
	s, err := newSupervisor(context.WithoutCancel(ctx), c.Dir, c.Version, shutdown)
	if err != nil {
		return err
	}
	defer func() { _ = s.processes.Close() }()
	go s.processes.Run(ctx)
	defer s.processes.SweepOnSignal()()
	if err := s.takeOver(c.Inherited); err != nil {
		return fmt.Errorf("take over from a predecessor: %w", err)
	}
	closeRest()
	server, err := ttrpc.NewServer(ttrpc.WithUnaryServerInterceptor(answer))
	if err != nil {
		return err
	}
	taskAPI.RegisterTTRPCTaskService(server, taskService{s})
	supervisorv1.RegisterSupervisorService(server, supervisorService{s})
	log.G(ctx).WithField("version", c.Version).WithField("tasks", len(s.all())).Info("Supervisor started")
	return serve(ctx, server, awaitCallers(c.Listener, cmp.Or(c.Patience, DefaultPatience), func() bool {
		if s.close(false) != nil {
			return false // there are tasks
		}
		log.G(ctx).Info("Supervisor exiting: it has no tasks, and no daemon reconnected")
		shutdown()
		return true
	}))
}

// lastAnswers bounds the calls that are in progress at shutdown.
const lastAnswers = time.Second

func serve(ctx context.Context, server *ttrpc.Server, l net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.WithoutCancel(ctx), l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAnswers)
	defer cancel()
	_ = server.Shutdown(bounded)
	_ = server.Close()
	if err := <-served; err != nil && !errors.Is(err, ttrpc.ErrServerClosed) {
		return err
	}
	return nil
}

// answer converts errors to gRPC statuses. A panic becomes an error of its call and does not end
// this process, on which all pods of a handler may depend.
func answer(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (_ any, err error) {
	defer func() {
		if p := recover(); p != nil {
			log.G(ctx).WithFields(log.Fields{"rpc": info.FullMethod, "panic": fmt.Sprint(p), "stack": string(debug.Stack())}).
				Error("Call panicked; please report this with the stack")
			err = errgrpc.ToGRPC(fmt.Errorf("%s panicked, the supervisor's log has the stack: %w", info.FullMethod, errdefs.ErrInternal))
		}
	}()
	response, err := method(ctx, unmarshal)
	if err == nil {
		return response, nil
	}
	log.G(ctx).WithError(err).WithField("rpc", info.FullMethod).Debug("Call failed")
	return nil, errgrpc.ToGRPC(err)
}
