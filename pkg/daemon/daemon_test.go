package daemon_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/daemon"
)

// Calls fail until the pods are recovered. The service manager is notified when the daemon is
// ready and when it stops.
func TestLifeOfADaemon(t *testing.T) {
	b := newBed(t)
	manager := b.manager(t)
	recovering, recovered, closed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	b.engine.Fail = func(_ context.Context, rpc string) error {
		switch rpc {
		case "Recover":
			close(recovering)
			<-recovered
		case "Close":
			close(closed)
		}
		return nil
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	d := b.daemon(t)
	go func() { ended <- d.Run(ctx) }()

	<-recovering
	if err := b.version(t); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "recovering") {
		t.Errorf("while it recovers: %v", err)
	}
	test.Equal(t, "notification before it is ready", told(t, manager, 50*time.Millisecond), "")
	close(recovered)
	if said := told(t, manager, time.Minute); !strings.HasPrefix(said, "READY=1\nSTATUS=Generation 1, handlers: ") {
		t.Errorf("the notification when it is ready is %q", said)
	}
	test.Check(t, b.version(t))
	sandbox, err := b.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "gvisor"})
	if err != nil || b.engine.Definition(sandbox.GetPodSandboxId()) != b.config.Runtimes[0] {
		t.Errorf("got %v, %v", sandbox, err)
	}

	stop()
	test.Check(t, <-ended)
	test.Equal(t, "notification when it stops", told(t, manager, time.Minute), "STOPPING=1")
	select {
	case <-closed:
	default:
		t.Error("the engine was not closed")
	}
	if exists(t, b.config.Server.Socket) || exists(t, strings.TrimPrefix(b.config.Metrics.Address, "unix://")) {
		t.Error("a socket is left")
	}
	if b.engine.Definition(sandbox.GetPodSandboxId()) == nil {
		t.Error("the stop removed a pod")
	}
}

// The second daemon knows the pods of the first.
func TestRestart(t *testing.T) {
	b := newBed(t)
	first := b.started(t)
	sandbox := test.Value(b.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "gvisor"}))(t)
	test.Must(t, first.Stop(t.Context()))
	b.config.Runtimes = b.config.Runtimes[1:] // removes gvisor
	b.started(t)
	resp, err := b.client(t).PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox.GetPodSandboxId()})
	if err != nil || resp.GetStatus().GetId() != sandbox.GetPodSandboxId() {
		t.Errorf("got %v, %v", resp, err)
	}
}

func TestABrokenHandlerSaysWhy(t *testing.T) {
	b := newBed(t)
	b.started(t)
	_, err := b.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "kata"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "/dev/kvm is missing") {
		t.Errorf("got %v", err)
	}
	resp := test.Value(b.client(t).Status(t.Context(), &runtimeapi.StatusRequest{}))(t)
	for _, h := range resp.GetRuntimeHandlers() {
		if h.GetName() == "kata" {
			t.Error("the node advertises a handler that cannot run pods")
		}
	}
}

// A failed start is rolled back, and another daemon can start on the same paths.
func TestAFailedStartIsUndone(t *testing.T) {
	for name, sabotage := range map[string]func(*bed){
		"the engine does not open": func(b *bed) {
			b.options.NewEngine = func(context.Context, *config.Config, daemon.Build, *daemon.Handlers) (daemon.Engine, error) {
				return nil, errors.New("sabotage")
			}
		},
		"recovery fails": func(b *bed) { b.failing("Recover", "sabotage") },
		"bad address for metrics": func(b *bed) {
			b.config.Metrics.Address = "127.0.0.1:sabotage"
		},
		"no such group":   func(b *bed) { b.config.Server.SocketGroup = "sabotage" },
		"unknown default": func(b *bed) { b.config.DefaultRuntime = "sabotage" },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			whole := *b.config
			options := b.options
			sabotage(b)
			d := b.daemon(t)
			err := d.Start(t.Context())
			if err == nil || !strings.Contains(err.Error(), "sabotage") {
				t.Fatalf("got %v", err)
			}
			test.ErrorIs(t, d.Start(t.Context()), err, "a second Start")
			if exists(t, b.config.Server.Socket) {
				t.Error("the socket is left")
			}
			*b.config, b.options, b.engine.Fail = whole, options, nil
			b.started(t)
			test.Check(t, b.version(t))
		})
	}
}

func TestStartAndStopInAnyOrder(t *testing.T) {
	b := newBed(t)
	d := b.daemon(t)
	test.Check(t, d.Stop(t.Context()))
	test.Fails(t, d.Start(t.Context()), "a stopped daemon started")
	if exists(t, b.config.Server.Socket) {
		t.Error("the socket exists")
	}

	d = b.daemon(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			test.Check(t, d.Start(t.Context()))
		})
	}
	all.Wait()
	for range 4 {
		all.Go(func() {
			test.Check(t, d.Stop(t.Context()))
		})
	}
	all.Wait()
	if exists(t, b.config.Server.Socket) {
		t.Error("the socket exists")
	}
}

// A stop of a daemon during its recovery ends the recovery.
func TestStopEndsAStart(t *testing.T) {
	for name, end := range map[string]func(stop context.CancelFunc, d *daemon.Daemon) error{
		"by its context": func(stop context.CancelFunc, _ *daemon.Daemon) error { stop(); return nil },
		"by Stop":        func(_ context.CancelFunc, d *daemon.Daemon) error { return d.Stop(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			recovering := make(chan struct{})
			b.engine.Fail = func(ctx context.Context, rpc string) error {
				if rpc == "Recover" {
					close(recovering)
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			d := b.daemon(t)
			ended := make(chan error, 1)
			go func() { ended <- d.Run(ctx) }()
			<-recovering
			test.Check(t, end(stop, d))
			if err := <-ended; err != nil && ctx.Err() != nil {
				t.Errorf("Run was stopped during the start, and failed with %v", err)
			}
			if exists(t, b.config.Server.Socket) {
				t.Error("the socket is left")
			}
		})
	}
}

// Running calls get half of StopTimeout, then they are canceled. The engine is
// closed after the last call.
func TestStopIsBounded(t *testing.T) {
	b := newBed(t)
	b.options.StopTimeout = time.Second
	hanging := make(chan struct{})
	var mu sync.Mutex
	var order []string
	note := func(what string) { mu.Lock(); defer mu.Unlock(); order = append(order, what) }
	b.engine.Fail = func(ctx context.Context, rpc string) error {
		switch rpc {
		case "StopPodSandbox":
			close(hanging)
			<-ctx.Done()
			note("call")
		case "Close":
			note("engine")
		}
		return nil
	}
	d := b.started(t)
	client := b.client(t)
	sandbox := test.Value(client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{}))(t)
	events := test.Value(client.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{}))(t)
	test.Eventually(t, "the engine has a subscriber", func() bool { return b.engine.Subscribers() > 0 })
	var calling sync.WaitGroup
	calling.Go(func() {
		test.Fails(t, test.Err(client.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox.GetPodSandboxId()})), "a call that hung succeeded")
	})
	<-hanging
	begin := time.Now()
	test.Check(t, d.Stop(t.Context()))
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("stopping took %s", took)
	}
	calling.Wait()
	if _, err := events.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("the subscription ended with %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(order) != 2 || order[0] != "call" {
		t.Errorf("the order was %v", order)
	}
}

func TestAFailedStepDoesNotKeepOthersFromStopping(t *testing.T) {
	b := newBed(t)
	b.failing("Close", "the disk is gone")
	d := b.started(t)
	test.Says(t, d.Stop(t.Context()), "stop engine: the disk is gone")
	if exists(t, b.config.Server.Socket) {
		t.Error("the socket is left")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]daemon.Options{
		"Options.Config":      {Loader: &files{}},
		"Options.Loader":      {Config: &config.Config{}},
		"Options.StopTimeout": {Config: &config.Config{}, Loader: &files{}, StopTimeout: -1},
	} {
		test.Says(t, test.Err(daemon.New(o)), name)
	}
}
