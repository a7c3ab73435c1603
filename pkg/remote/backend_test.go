package remote

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// daemon is a CRI daemon in memory behind a real socket.
type daemon struct {
	*routertest.Backend
	path   string
	server *grpc.Server
	// service is served in place of the daemon, if it is not nil.
	service runtimeapi.RuntimeServiceServer
	// unknown serves calls that this CRI does not have, if it is not nil.
	unknown grpc.StreamHandler
	// lacking are methods that it does not know.
	lacking atomic.Pointer[map[string]bool]
	// streams is the URL that it answers with for sessions, a string.
	streams atomic.Value
	// told counts how often it was told the pod network's addresses.
	told atomic.Int64
}

func (d *daemon) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	d.told.Add(1)
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

func (d *daemon) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: runtimeapi.RuntimeReady, Status: true}}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "runc"}, {Name: ""}},
	}, nil
}

func (d *daemon) session() string {
	url, _ := d.streams.Load().(string)
	return url
}

func (d *daemon) Exec(context.Context, *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	return &runtimeapi.ExecResponse{Url: d.session()}, nil
}

func (d *daemon) Attach(context.Context, *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	return &runtimeapi.AttachResponse{Url: d.session()}, nil
}

func (d *daemon) PortForward(context.Context, *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	return &runtimeapi.PortForwardResponse{Url: d.session()}, nil
}

func (d *daemon) lacks(method string) error {
	if l := d.lacking.Load(); l != nil && (*l)[method] {
		return status.Error(codes.Unimplemented, "unknown method")
	}
	return nil
}

func (d *daemon) start(t testing.TB) {
	t.Helper()
	l, err := net.Listen("unix", d.path)
	test.Must(t, err)
	unknown := d.unknown
	if unknown == nil {
		unknown = func(any, grpc.ServerStream) error { return status.Error(codes.Unimplemented, "unknown method") }
	}
	d.server = grpc.NewServer(grpc.UnknownServiceHandler(unknown),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
			if err := d.lacks(info.FullMethod); err != nil {
				return nil, err
			}
			return serve(handler.WithDefinition(ctx, &handler.Definition{Name: "x"}), req)
		}),
		grpc.StreamInterceptor(func(srv any, to grpc.ServerStream, info *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
			if err := d.lacks(info.FullMethod); err != nil {
				return err
			}
			return serve(srv, to)
		}),
	)
	var service runtimeapi.RuntimeServiceServer = d
	if d.service != nil {
		service = d.service
	}
	runtimeapi.RegisterRuntimeServiceServer(d.server, service)
	runtimeapi.RegisterImageServiceServer(d.server, d)
	go serve(t, d.server, l)
}

// serve ends with the server.
func serve(t testing.TB, s *grpc.Server, l net.Listener) {
	test.Check(t, s.Serve(l))
}

func newDaemon(t testing.TB) *daemon { return newDaemonThat(t, nil) }

// newDaemonThat fails, hangs or panics as fail does; see routertest.Backend.
func newDaemonThat(t testing.TB, fail func(ctx context.Context, rpc string) error) *daemon {
	t.Helper()
	d := &daemon{Backend: routertest.New("other"), path: filepath.Join(t.TempDir(), "cri.sock")}
	d.Fail = fail
	d.start(t)
	t.Cleanup(func() { d.server.Stop() })
	return d
}

func connect(t testing.TB, d *daemon, dir string) *Backend {
	t.Helper()
	b, err := New(Options{
		Endpoint: d.path, Dir: dir, Instance: "me", ListTimeout: time.Second, Changed: func() {},
		Handlers: []Handler{{Name: "legacy", Remote: "runc"}},
	})
	test.Must(t, err)
	b.Start(context.Background())
	t.Cleanup(func() { test.Check(t, b.Close(false)) })
	return b
}

func until(t testing.TB, what string, true func() bool) {
	t.Helper()
	for range 3000 {
		if true() {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatal("not in time: " + what)
}

func TestPodsOfADaemonThatGoesAway(t *testing.T) {
	d := newDaemon(t)
	dir := t.TempDir()
	b := connect(t, d, dir)
	until(t, "ready", func() bool { return b.Health().Phase == Ready })
	ctx := handler.WithDefinition(t.Context(), &handler.Definition{Name: "legacy"})
	pod, err := b.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{
		RuntimeHandler: "legacy", Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "a", Uid: "u"}},
	})
	test.Must(t, err)
	c, err := b.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod.GetPodSandboxId(), Config: &runtimeapi.ContainerConfig{}})
	test.Must(t, err)
	d.server.Stop()
	until(t, "down", func() bool { return b.Health().Phase == Down })
	_, err = b.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetContainerId()})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a call to a daemon that is gone: %v", err)
	}
	t.Log(err)
	listed := func(b *Backend) {
		t.Helper()
		l, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(l.GetItems()) != 1 || l.GetItems()[0].GetId() != pod.GetPodSandboxId() || l.GetItems()[0].GetRuntimeHandler() != "legacy" {
			t.Errorf("listed %v, %v", l, err)
		}
		cs, err := b.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil || len(cs.GetContainers()) != 1 || cs.GetContainers()[0].GetId() != c.GetContainerId() {
			t.Errorf("listed %v, %v", cs, err)
		}
	}
	listed(b)
	again := connect(t, d, dir)
	listed(again)
	if got := again.Inventory(); len(got) != 1 || got[0].Handler != "legacy" || len(got[0].Containers) != 1 {
		t.Errorf("inventory %+v", got)
	}
	d.start(t)
	until(t, "back", func() bool { return b.Health().Phase == Ready })
	if _, err = b.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetContainerId()}); err != nil {
		t.Error(err)
	}
}

func BenchmarkHop(b *testing.B) {
	d := newDaemon(b)
	r := connect(b, d, b.TempDir())
	until(b, "ready", func() bool { return r.Health().Phase == Ready })
	path := filepath.Join(b.TempDir(), "face.sock")
	l, err := net.Listen("unix", path)
	test.Must(b, err)
	// As the daemon has it.
	s := grpc.NewServer(grpc.NumStreamWorkers(8), grpc.InitialWindowSize(1<<20), grpc.InitialConnWindowSize(1<<20))
	runtimeapi.RegisterRuntimeServiceServer(s, r)
	go serve(b, s, l)
	defer s.Stop()
	for name, at := range map[string]string{"direct": d.path, "through": path} {
		b.Run(name, func(b *testing.B) {
			conn, err := grpc.NewClient("unix://"+at, grpc.WithTransportCredentials(insecure.NewCredentials()))
			test.Must(b, err)
			defer conn.Close()
			client := runtimeapi.NewRuntimeServiceClient(conn)
			b.ReportAllocs()
			var before, after unix.Rusage
			_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
			for b.Loop() {
				if _, err := client.ExecSync(b.Context(), &runtimeapi.ExecSyncRequest{ContainerId: "x"}); err != nil {
					b.Fatal(err)
				}
			}
			_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
			// Other than the time on the clock, that of the CPUs is the same on a busy machine.
			used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(after.Nvcsw-before.Nvcsw)/float64(b.N), "waits/op")
		})
	}
}

// hung makes the daemon answer nothing until it is let go.
func hung() (fail func(context.Context, string) error, hang, let func()) {
	var gate atomic.Pointer[chan struct{}]
	fail = func(ctx context.Context, _ string) error {
		if g := gate.Load(); g != nil {
			select {
			case <-*g:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	return fail, func() { c := make(chan struct{}); gate.Store(&c) }, func() { close(*gate.Swap(nil)) }
}

func TestListsOfADaemonThatHangs(t *testing.T) {
	fail, hang, let := hung()
	d := newDaemonThat(t, fail)
	b := connect(t, d, t.TempDir())
	until(t, "ready", func() bool { return b.Health().Phase == Ready })
	ctx := handler.WithDefinition(t.Context(), &handler.Definition{Name: "legacy"})
	if _, err := b.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}}); err != nil {
		t.Fatal(err)
	}
	hang()
	for range 3 {
		l, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(l.GetItems()) != 1 {
			t.Errorf("listed %v, %v", l, err)
		}
		s, err := b.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
		if err != nil || len(s.GetStats()) != 0 {
			t.Errorf("measured %v, %v", s, err)
		}
	}
	let()
	until(t, "a fresh list", func() bool {
		l, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		return err == nil && len(l.GetItems()) == 0 && len(l.ProtoReflect().GetUnknown()) > 0
	})
}

func TestListsInTheFormThatADaemonHas(t *testing.T) {
	d := newDaemon(t)
	b := connect(t, d, t.TempDir())
	until(t, "ready", func() bool { return b.Health().Phase == Ready })
	ctx := handler.WithDefinition(t.Context(), &handler.Definition{Name: "legacy"})
	if _, err := b.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}}); err != nil {
		t.Fatal(err)
	}
	const unary, stream = runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, runtimeapi.RuntimeService_StreamPodSandboxes_FullMethodName
	for name, c := range map[string]struct {
		lacking map[string]bool
		want    codes.Code
	}{
		"both": {nil, codes.OK}, "unary only": {map[string]bool{stream: true}, codes.OK},
		"stream only": {map[string]bool{unary: true}, codes.OK}, "neither": {map[string]bool{unary: true, stream: true}, codes.Unimplemented},
	} {
		b.node.abilities.Store(&abilities{})
		d.lacking.Store(&c.lacking)
		for range 2 { // the second time by what was remembered
			l, err := b.lists.whole(ctx, sandboxLists, &runtimeapi.ListPodSandboxRequest{})
			if status.Code(err) != c.want || (err == nil && len(l) == 0) {
				t.Errorf("%s: whole: %d bytes, %v", name, len(l), err)
			}
			got := 0
			err = b.lists.pieces(ctx, sandboxLists, &runtimeapi.ListPodSandboxRequest{}, func(f frame) error {
				got += len(f)
				return nil
			})
			if status.Code(err) != c.want || (err == nil && got == 0) {
				t.Errorf("%s: pieces: %d bytes, %v", name, got, err)
			}
		}
	}
}

// listener is a client of events.
type listener struct {
	grpc.ServerStream
	ctx   context.Context
	heard chan *runtimeapi.ContainerEventResponse
}

func (l *listener) Context() context.Context { return l.ctx }

func (l *listener) Send(e *runtimeapi.ContainerEventResponse) error {
	l.heard <- e
	return nil
}

func (l *listener) next(t *testing.T) string {
	t.Helper()
	select {
	case e := <-l.heard:
		kind := strings.TrimSuffix(strings.TrimPrefix(e.GetContainerEventType().String(), "CONTAINER_"), "_EVENT")
		return e.GetContainerId() + " " + strings.ToLower(kind)
	case <-time.After(20 * time.Second):
		t.Fatal("no event")
		return ""
	}
}

// A subscription ends with the daemon, and one of meanwhile when it is back: the client lists then.
func TestEventsOfADaemonThatGoesAway(t *testing.T) {
	d := newDaemon(t)
	b := connect(t, d, t.TempDir())
	until(t, "ready", func() bool { return b.Health().Phase == Ready })
	ctx, cancel := context.WithCancel(handler.WithDefinition(t.Context(), &handler.Definition{Name: "legacy"}))
	defer cancel()
	l := &listener{ctx: ctx, heard: make(chan *runtimeapi.ContainerEventResponse, 1000)}
	ended := make(chan error, 1)
	subscribe := func() { go func() { ended <- b.GetContainerEvents(&runtimeapi.GetEventsRequest{}, l) }() }
	subscribe()
	until(t, "an event of a new pod", func() bool {
		if _, err := d.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}}); err != nil {
			t.Fatal(err)
		}
		return len(l.heard) > 0
	})
	if got := l.next(t); !strings.HasSuffix(got, " started") {
		t.Errorf("heard %s", got)
	}
	d.server.Stop()
	if err := <-ended; status.Code(err) != codes.Unavailable {
		t.Errorf("with the daemon it ended with %v", err)
	}
	until(t, "down", func() bool { return b.Health().Phase == Down })
	subscribe()
	d.start(t)
	if err := <-ended; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "list, and subscribe again") {
		t.Errorf("with the daemon back it ended with %v", err)
	}
}

// BenchmarkLists lists the containers of a daemon that has 250 of them.
func BenchmarkLists(b *testing.B) {
	d := newDaemon(b)
	r := connect(b, d, b.TempDir())
	until(b, "ready", func() bool { return r.Health().Phase == Ready })
	ctx := handler.WithDefinition(b.Context(), &handler.Definition{Name: "legacy"})
	pod, err := r.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "legacy", Config: &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "a", Uid: "u"},
	}})
	test.Must(b, err)
	for i := range 250 {
		if _, err := r.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod.GetPodSandboxId(), Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: fmt.Sprint("c", i)},
			Image:    &runtimeapi.ImageSpec{Image: "example.test/app:1", RuntimeHandler: "legacy"},
			Labels:   map[string]string{"io.kubernetes.pod.name": "a", "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": "u"},
		}}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.ListContainers(ctx, &runtimeapi.ListContainersRequest{}); err != nil {
			b.Fatal(err)
		}
	}
}
