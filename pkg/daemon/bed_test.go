package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthapi "google.golang.org/grpc/health/grpc_health_v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/daemon"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/overhead"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// TestMain keeps the log out of the output of a test that fails. With victimSocket set, the
// test binary is the daemon that is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv(victimSocket); path != "" {
		victim(path)
		return
	}
	if err := log.SetLevel("error"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	m.Run()
}

// bed has the configuration and an in-memory engine of one daemon.
type bed struct {
	config  *config.Config
	engine  *routertest.Backend
	options daemon.Options
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dir := t.TempDir()
	b := &bed{engine: routertest.New("memory")}
	b.config = &config.Config{
		DefaultRuntime: "runc",
		Engine:         config.Engine{Root: filepath.Join(dir, "root")},
		Server:         config.Server{Socket: filepath.Join(dir, "run", "cri.sock"), SocketMode: 0o660},
		ContainerdAPI:  config.ContainerdAPI{Socket: filepath.Join(dir, "run", "containerd.sock")},
		Metrics:        config.Metrics{Address: "unix://" + filepath.Join(dir, "metrics.sock")},
		Runtimes:       []*handler.Definition{{Name: "gvisor"}, {Name: "runc"}},
		Broken:         []config.Broken{{Name: "kata", Origin: "conf.d/kata.toml:1", Reason: "/dev/kvm is missing"}},
	}
	b.options = daemon.Options{
		Config: b.config, Loader: &files{next: b.config}, Build: daemon.Build{Version: "1.2.3", Revision: "abc"}, StopTimeout: 10 * time.Second,
		NewProber: func(daemon.Engine, <-chan struct{}) daemon.Prober { return willing{} },
		NewEngine: func(context.Context, *config.Config, daemon.Build, *daemon.Handlers) (daemon.Engine, error) {
			return b.memory(), nil
		},
	}
	return b
}

func (b *bed) memory() memory {
	return memory{b.engine}
}

// memory is an engine with pods in memory.
type memory struct {
	*routertest.Backend
}

func (memory) SelfCheck(context.Context, *handler.Definition, *probe.Runtime, bool) (probe.Proof, error) {
	return nil, errors.New("no self-check pods here")
}

func (memory) Images() *image.Store { return nil }

func (memory) Unresponsive(context.Context) []string { return nil }

func (memory) CheckpointsInUse() []string { return nil }

func (memory) CheckpointDurations() prometheus.Collector {
	return podcheckpoint.NewDurations()
}

// ServeContainerdAPI serves only the health service.
func (memory) ServeContainerdAPI(ctx context.Context, l net.Listener, options ...grpc.ServerOption) error {
	server := grpc.NewServer(options...)
	healthapi.RegisterHealthServer(server, health.NewServer())
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(l)
}

func (memory) Capabilities(context.Context, *handler.Definition, *probe.Runtime, probe.Proof) capability.Table {
	return capability.Table{}
}

func (memory) Installed(context.Context, *handler.Definition) ([]handler.OwnedBinary, error) {
	return nil, nil
}

func (m memory) LastFailure(string) string { return "" }

// Overhead returns the overhead of pods: 20 MiB for each of gvisor's, of which 10 MiB are
// declared.
func (m memory) Overhead(context.Context) (map[string]overhead.Pods, error) {
	const mi = 1 << 20
	p := overhead.Pods{Declared: []overhead.Declared{{Memory: 10 * mi, CPU: 250}}}
	for _, o := range m.Inventory() {
		p.Readings = append(p.Readings, overhead.Reading{
			Pod: o.Sandbox, Parts: []overhead.Part{{Key: o.Sandbox, Memory: 20 * mi, CPU: time.Duration(time.Now().UnixNano()), Pods: 1}},
		})
	}
	return map[string]overhead.Pods{"gvisor": p}, nil
}

// willing is a prober for which every handler can run pods.
type willing struct{}

func (willing) Check(context.Context, *handler.Definition, probe.Depth) (*probe.Runtime, error) {
	return &probe.Runtime{}, nil
}

func (willing) Proof(*handler.Definition, *probe.Runtime) probe.Proof { return nil }

func (willing) Runs() map[string]probe.SelfCheckRuns { return nil }

// daemon creates a daemon that is stopped at the end of the test.
func (b *bed) daemon(t *testing.T) *daemon.Daemon {
	t.Helper()
	d := test.Value(daemon.New(b.options))(t)
	t.Cleanup(func() { d.Stop(context.Background()) }) //nolint:errcheck // tests that need the error call Stop
	return d
}

// started creates and starts a daemon.
func (b *bed) started(t *testing.T) *daemon.Daemon {
	t.Helper()
	d := b.daemon(t)
	test.Must(t, d.Start(t.Context()))
	return d
}

// client returns a client of the daemon's CRI socket.
func (b *bed) client(t *testing.T) runtimeapi.RuntimeServiceClient {
	t.Helper()
	conn := test.Value(grpc.NewClient("unix://"+b.config.Server.Socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	t.Cleanup(func() { conn.Close() })
	return runtimeapi.NewRuntimeServiceClient(conn)
}

func (b *bed) version(t *testing.T) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := b.client(t).Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true))
	return err
}

// failing makes one method of the engine fail.
func (b *bed) failing(method, text string) {
	b.engine.Fail = func(_ context.Context, rpc string) error {
		if rpc == method {
			return errors.New(text)
		}
		return nil
	}
}

// manager returns the notify socket of a service manager, as systemd has it.
func (b *bed) manager(t *testing.T) *net.UnixConn {
	t.Helper()
	b.options.NotifySocket = filepath.Join(t.TempDir(), "notify")
	conn := test.Value(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: b.options.NotifySocket, Net: "unixgram"}))(t)
	t.Cleanup(func() { test.Check(t, conn.Close()) })
	return conn
}

// told returns the next message to the service manager, or "" if there is none in time.
func told(t *testing.T, conn *net.UnixConn, within time.Duration) string {
	t.Helper()
	test.Must(t, conn.SetReadDeadline(time.Now().Add(within)))
	buffer := make([]byte, 256)
	n, err := conn.Read(buffer)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ""
	}
	test.Must(t, err)
	return string(buffer[:n])
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}
