package remote

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// daemon is an in-memory CRI daemon on a real socket.
type daemon struct {
	*routertest.Backend
	path   string
	server *grpc.Server
	// service, if not nil, is served in place of the daemon.
	service runtimeapi.RuntimeServiceServer
	// unknown, if not nil, serves methods that this CRI does not have.
	unknown grpc.StreamHandler
	// before runs before each call. It may return an error for the call, or block.
	before atomic.Pointer[func(ctx context.Context, method string) error]
	// streams is the URL in responses to Exec, Attach and PortForward, a string.
	streams atomic.Value
	// told is the pod CIDR of the last UpdateRuntimeConfig, a string.
	told atomic.Value

	mu sync.Mutex
	// calls are the calls since the last call of heard.
	calls []call
}

// call is one call to the daemon.
type call struct {
	method string
	sent   metadata.MD
}

// heard returns and clears the daemon's calls.
func (d *daemon) heard() []call {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer func() { d.calls = nil }()
	return d.calls
}

func (d *daemon) UpdateRuntimeConfig(_ context.Context, req *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	d.told.Store(req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr())
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}

func (d *daemon) Status(context.Context, *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	return &runtimeapi.StatusResponse{
		Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: runtimeapi.RuntimeReady, Status: true}}},
		RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "runc"}, {Name: ""}},
	}, nil
}

func (d *daemon) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxesResponse]) error {
	all, err := d.ListPodSandbox(to.Context(), &runtimeapi.ListPodSandboxRequest{Filter: req.GetFilter()})
	if err != nil {
		return err
	}
	return to.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: all.GetItems()})
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

// begin records a call, and returns the error that the call must fail with.
func (d *daemon) begin(ctx context.Context, method string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	d.mu.Lock()
	d.calls = append(d.calls, call{method, md})
	d.mu.Unlock()
	if before := d.before.Load(); before != nil {
		return (*before)(ctx, method)
	}
	return nil
}

func (d *daemon) start(t testing.TB) {
	t.Helper()
	l := test.Value(net.Listen("unix", d.path))(t)
	unknown := d.unknown
	if unknown == nil {
		unknown = func(any, grpc.ServerStream) error { return status.Error(codes.Unimplemented, "unknown method") }
	}
	d.server = grpc.NewServer(grpc.UnknownServiceHandler(unknown),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
			if err := d.begin(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return serve(handler.WithDefinition(ctx, &handler.Definition{Name: "x"}), req)
		}),
		grpc.StreamInterceptor(func(srv any, to grpc.ServerStream, info *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
			if err := d.begin(to.Context(), info.FullMethod); err != nil {
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

// serve returns when the server stops.
func serve(t testing.TB, s *grpc.Server, l net.Listener) {
	test.Check(t, s.Serve(l))
}

func newDaemon(t testing.TB) *daemon { return newDaemonThat(t, nil) }

// newDaemonThat returns a daemon with fail as the Fail of its routertest.Backend.
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
	b := test.Value(newBackend(backendOptions{
		Endpoint: d.path, Dir: dir, Instance: "me", ListTimeout: time.Second, Changed: func() {},
		Handlers: []lastknown.Handler{{Name: "legacy", Remote: "runc"}},
	}))(t)
	b.Start(context.Background())
	t.Cleanup(func() { test.Check(t, b.Close(false)) })
	return b
}

func isReady(t *testing.T, b *Backend) {
	t.Helper()
	test.Eventually(t, "ready", func() bool { return b.Health().Phase == Ready })
}

// ready returns the Backend of a daemon, once it is ready.
func ready(t *testing.T, d *daemon) *Backend {
	t.Helper()
	b := connect(t, d, t.TempDir())
	isReady(t, b)
	return b
}

// legacy returns the context of a call for the handler "legacy".
func legacy(t *testing.T) context.Context {
	return handler.WithDefinition(t.Context(), &handler.Definition{Name: "legacy"})
}

// pod creates a pod.
func pod(t *testing.T, b *Backend) (id string) {
	t.Helper()
	resp := test.Value(b.RunPodSandbox(legacy(t), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}}))(t)
	return resp.GetPodSandboxId()
}

func TestPodsOfADaemonThatGoesAway(t *testing.T) {
	d := newDaemon(t)
	dir := t.TempDir()
	b := connect(t, d, dir)
	isReady(t, b)
	ctx := legacy(t)
	made := pod(t, b)
	c := test.Value(b.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: made, Config: &runtimeapi.ContainerConfig{}}))(t)
	d.server.Stop()
	test.Eventually(t, "down", func() bool { return b.Health().Phase == Down })
	_, err := b.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetContainerId()})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("a call to a stopped daemon: %v", err)
	}
	listed := func(b *Backend) {
		t.Helper()
		l, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(l.GetItems()) != 1 || l.GetItems()[0].GetId() != made || l.GetItems()[0].GetRuntimeHandler() != "legacy" {
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
		t.Errorf("the inventory is %+v", got)
	}
	d.start(t)
	test.Eventually(t, "back", func() bool { return b.Health().Phase == Ready })
	if _, err = b.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.GetContainerId()}); err != nil {
		t.Error(err)
	}
}

// hung returns a fail function for newDaemonThat. After hang, calls block until let is called.
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
	b := ready(t, d)
	ctx := legacy(t)
	pod(t, b)
	hang()
	for range 3 {
		l, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(l.GetItems()) != 1 {
			t.Errorf("listed %v, %v", l, err)
		}
		s, err := b.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
		if err != nil || len(s.GetStats()) != 0 {
			t.Errorf("got the stats %v, %v", s, err)
		}
	}
	let()
	test.Eventually(t, "a fresh list", func() bool {
		l, err := b.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		return err == nil && len(l.GetItems()) == 0 && len(l.ProtoReflect().GetUnknown()) > 0
	})
}

func TestListsInTheFormThatADaemonHas(t *testing.T) {
	d := newDaemon(t)
	b := ready(t, d)
	ctx := legacy(t)
	pod(t, b)
	const unary, stream = runtimeapi.RuntimeService_ListPodSandbox_FullMethodName, runtimeapi.RuntimeService_StreamPodSandboxes_FullMethodName
	req := &runtimeapi.ListPodSandboxRequest{}
	for name, c := range map[string]struct {
		lacking []string
		why     codes.Code
		want    codes.Code
	}{
		"both": {nil, codes.OK, codes.OK}, "unary only": {[]string{stream}, codes.Unimplemented, codes.OK},
		"stream only": {[]string{unary}, codes.Unimplemented, codes.OK}, "neither": {[]string{unary, stream}, codes.Unimplemented, codes.Unimplemented},
		"too large for one message": {[]string{unary}, codes.ResourceExhausted, codes.OK},
	} {
		before := func(_ context.Context, method string) error {
			if slices.Contains(c.lacking, method) {
				return status.Error(c.why, "not so")
			}
			return nil
		}
		d.before.Store(&before)
		b.node.support.Store(&methodSupport{})
		for _, remembered := range []bool{false, true} {
			d.heard()
			if got, err := b.lists.whole(ctx, sandboxLists, req); status.Code(err) != c.want || (err == nil && len(got) == 0) {
				t.Errorf("%s: %d bytes, %v", name, len(got), err)
			}
			for _, call := range d.heard() {
				if remembered && slices.Contains(c.lacking, call.method) {
					t.Errorf("%s: %s was called again", name, call.method)
				}
			}
		}
	}
}

// listener is a client that receives events.
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

// A subscription ends when the daemon goes away. One that begins while the daemon is away ends when
// it is back: the client must list the containers then.
func TestEventsOfADaemonThatGoesAway(t *testing.T) {
	d := newDaemon(t)
	b := ready(t, d)
	ctx, cancel := context.WithCancel(handler.WithDefinition(t.Context(), &handler.Definition{Name: "legacy"}))
	defer cancel()
	l := &listener{ctx: ctx, heard: make(chan *runtimeapi.ContainerEventResponse, 1000)}
	ended := make(chan error, 1)
	subscribe := func() { go func() { ended <- b.GetContainerEvents(&runtimeapi.GetEventsRequest{}, l) }() }
	subscribe()
	test.Eventually(t, "an event of a new pod", func() bool {
		test.Must(t, test.Err(d.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}})))
		return len(l.heard) > 0
	})
	if got := l.next(t); !strings.HasSuffix(got, " started") {
		t.Errorf("the event is %s", got)
	}
	d.server.Stop()
	if err := <-ended; status.Code(err) != codes.Unavailable {
		t.Errorf("when the daemon stopped, the subscription ended with %v", err)
	}
	test.Eventually(t, "down", func() bool { return b.Health().Phase == Down })
	subscribe()
	d.start(t)
	if err := <-ended; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "list, and subscribe again") {
		t.Errorf("when the daemon was back, the subscription ended with %v", err)
	}
}
