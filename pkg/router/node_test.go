package router_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containerd/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/observe"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// quiet is the level of the log in tests.
const quiet = "error"

// TestMain keeps the access log out of the output of a test that fails.
func TestMain(m *testing.M) {
	if err := log.SetLevel(quiet); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}

type nothingReported struct{}

func (nothingReported) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "berth", RuntimeVersion: "0.0.0", RuntimeApiVersion: "v1"}, nil
}
func (nothingReported) Stranded() []string      { return nil }
func (nothingReported) AdvertiseNotReady() bool { return false }
func (nothingReported) Info() map[string]string { return nil }

// node is a router behind a real socket, and a client of it.
type node struct {
	runtimeapi.RuntimeServiceClient
	images   runtimeapi.ImageServiceClient
	conn     *grpc.ClientConn
	router   *router.Router
	registry *handler.Registry[router.Backend]
}

// serve serves a table on a socket, without a call of SetReady.
func serve[B router.Backend](t *testing.T, first *handler.Table[router.Backend], backends ...B) *node {
	t.Helper()
	registry := handler.NewRegistry(first)
	r := router.New(router.NewPods(registry), nothingReported{}, nil)
	for _, b := range backends {
		r.Adopt(b)
	}
	return serveRouter(t, registry, r)
}

// serveRouter serves a router on a socket.
func serveRouter(t *testing.T, registry *handler.Registry[router.Backend], r *router.Router) *node {
	t.Helper()
	n := &node{registry: registry, router: r}
	server := grpc.NewServer(slices.Concat(observe.New(observe.Options{}).ServerOptions(), r.ServerOptions(), []grpc.ServerOption{grpc.WaitForHandlers(true)})...)
	r.Register(server)
	n.conn = connect(t, server)
	n.RuntimeServiceClient, n.images = runtimeapi.NewRuntimeServiceClient(n.conn), runtimeapi.NewImageServiceClient(n.conn)
	return n
}

// connect serves on a new socket until the test ends, and returns a connection to it.
func connect(t *testing.T, server *grpc.Server) *grpc.ClientConn {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "cri.sock")
	l := test.Value((&net.ListenConfig{}).Listen(t.Context(), "unix", socket))(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		test.Check(t, <-served)
	})
	conn := test.Value(grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// serveReady serves a table and calls SetReady.
func serveReady[B router.Backend](t *testing.T, first *handler.Table[router.Backend], backends ...B) *node {
	t.Helper()
	n := serve(t, first, backends...)
	n.router.SetReady()
	return n
}

func two() (one, two *routertest.Backend) { return routertest.New("one"), routertest.New("two") }

func table(t *testing.T, generation uint64, standard string, routes ...handler.Route[router.Backend]) *handler.Table[router.Backend] {
	t.Helper()
	return test.Value(handler.NewTable(generation, standard, routes))(t)
}

func ready(name string, b router.Backend) handler.Route[router.Backend] {
	return handler.Route[router.Backend]{Backend: b, Definition: &handler.Definition{Name: name}, State: handler.State{Phase: handler.Ready}}
}

// ctx bounds a call, so that one that hangs fails its own test.
func ctx(t *testing.T) context.Context {
	bound, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return bound
}

// run creates a sandbox. It may be called in any goroutine.
func (n *node) run(t *testing.T, name string) (sandbox string) {
	t.Helper()
	resp, err := n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: name})
	test.Checkf(t, err, "RunPodSandbox of handler %q", name)
	return resp.GetPodSandboxId()
}

// create creates a container.
func (n *node) create(t *testing.T, sandbox string) (container string) {
	t.Helper()
	resp, err := n.CreateContainer(ctx(t), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox})
	test.Checkf(t, err, "CreateContainer in %s", sandbox)
	return resp.GetContainerId()
}

// where returns the backend of a container.
func (n *node) where(t *testing.T, container string) (backend string) {
	t.Helper()
	resp, err := n.ExecSync(ctx(t), &runtimeapi.ExecSyncRequest{ContainerId: container})
	test.Checkf(t, err, "ExecSync in %s", container)
	return string(resp.GetStdout())
}

func wantCode(t *testing.T, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("the code is %s, want %s: %v", got, want, err)
	}
}
