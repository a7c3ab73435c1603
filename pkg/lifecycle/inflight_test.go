package lifecycle_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// node is a router on an in-memory backend, with a table that a Manager publishes.
type node struct {
	backend  *routertest.Backend
	registry *handler.Registry[router.Backend]
	router   *router.Router
	service  runtimeapi.RuntimeServiceServer
	config   atomic.Pointer[config.Config]
}

func (n *node) Load(context.Context) (*config.Config, error) { return n.config.Load(), nil }

func (*node) InForce(context.Context, *config.Config) {}

func (n *node) Paths() []string { return nil }

func (n *node) Check(context.Context, *handler.Definition, probe.Depth) (*probe.Runtime, error) {
	return &probe.Runtime{}, nil
}

func (*node) Capabilities(context.Context, *handler.Definition, *probe.Runtime) capability.Table {
	return capability.Table{}
}

func (n *node) Pods() map[string]int {
	if n.router == nil {
		return nil
	}
	return n.router.SandboxCounts()
}

func (n *node) Publish(p *lifecycle.Plan) error {
	var routes []handler.Route[router.Backend]
	for _, e := range p.Entries {
		routes = append(routes, handler.Route[router.Backend]{Backend: n.backend, Definition: e.Definition, State: e.State, Generation: e.Since})
	}
	table, err := handler.NewTable(p.Generation, p.Default, routes)
	if err != nil {
		return err
	}
	if n.registry == nil {
		n.registry = handler.NewRegistry(table)
		return nil
	}
	n.registry.Swap(table)
	return nil
}

// RegisterService keeps the router's service, so that the test calls it without a socket.
func (n *node) RegisterService(_ *grpc.ServiceDesc, service any) {
	if s, ok := service.(runtimeapi.RuntimeServiceServer); ok {
		n.service = s
	}
}

// version returns the configuration of reload i, in which the handler "changing" has a new path.
func version(i int) *config.Config {
	c := &config.Config{DefaultRuntime: []string{"steady", "changing"}[i%2]}
	c.Runtimes = []*handler.Definition{
		{Name: "changing", Type: handler.OCI, Path: fmt.Sprintf("/runtime-%d", i)}, {Name: "steady", Type: handler.OCI, Path: "/runtime"},
	}
	return c
}

const (
	reloads  = 1000
	inFlight = 50
)

// TestPainReloadNeverReachesPods: a thousand reloads while 50 pods start at a
// time lose no pod. Each pod has a Definition that was in force between its
// request and its response, and the first pod after a reload has the new
// Definition.
func TestPainReloadNeverReachesPods(t *testing.T) {
	n := &node{backend: routertest.New("memory")}
	n.config.Store(version(0))
	var now atomic.Int64 // the version in force
	var waiting atomic.Int64
	n.backend.Fail = func(_ context.Context, rpc string) error {
		if rpc == "RunPodSandbox" {
			// Long enough for reloads during the call.
			waiting.Add(1)
			time.Sleep(time.Millisecond)
			waiting.Add(-1)
		}
		return nil
	}
	m := test.Value(lifecycle.New(t.Context(), lifecycle.Options{Config: n.config.Load(), Loader: n, Prober: n, PodCounter: n, Publisher: n, CapabilitySource: n, Dir: t.TempDir()}))(t)
	defer func() { test.Check(t, m.Close()) }()
	n.router = router.New(router.NewPods(n.registry), struct{ router.NodeReport }{}, nil)
	n.router.Adopt(n.backend)
	n.router.Register(n)
	m.Start()
	test.Must(t, m.Ready(t.Context()))
	n.router.SetReady()

	stop := make(chan struct{})
	var made, crowd atomic.Int64
	var pods sync.WaitGroup
	for i := range inFlight {
		pods.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					n.onePod(t, i, &now)
					made.Add(1)
				}
			}
		})
	}
	for i := 1; i <= reloads; i++ {
		n.config.Store(version(i))
		if o, err := m.Reload(t.Context(), lifecycle.TriggerAdmin); err != nil || !o.Changed {
			t.Errorf("reload %d: %+v, %v", i, o, err)
		}
		now.Store(int64(i))
		crowd.Store(max(crowd.Load(), waiting.Load()))
		resp := test.Value(n.service.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "changing"}))(t)
		if got, want := n.backend.Definition(resp.GetPodSandboxId()).Path, fmt.Sprintf("/runtime-%d", i); got != want {
			t.Fatalf("after reload %d a new pod is on %s, want %s", i, got, want)
		}
		n.remove(t, resp.GetPodSandboxId())
	}
	close(stop)
	pods.Wait()
	t.Logf("%d pods during %d reloads, up to %d at once", made.Load(), reloads, crowd.Load())
	if made.Load() < reloads || crowd.Load() < inFlight/2 {
		t.Errorf("only %d pods, %d at once, were started during the reloads", made.Load(), crowd.Load())
	}
	if left := n.backend.Inventory(); len(left) > 0 || len(n.router.SandboxCounts()) > 0 {
		t.Errorf("pods are left: in the backend %v, in the router %v", left, n.router.SandboxCounts())
	}
}

// onePod starts a pod, reads its status and removes it.
func (n *node) onePod(t *testing.T, i int, now *atomic.Int64) {
	name := []string{"", "steady", "changing"}[i%3]
	before := now.Load()
	resp, err := n.service.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: name})
	if err != nil {
		t.Errorf("a pod of handler %q was lost: %v", name, err)
		return
	}
	after := now.Load() + 1 // a reload may be in force before now has its number
	id := resp.GetPodSandboxId()
	if d := n.backend.Definition(id); d.Name == "changing" {
		var got int64
		if _, err := fmt.Sscanf(d.Path, "/runtime-%d", &got); err != nil || got < before || got > after {
			t.Errorf("a pod that started between versions %d and %d is on %s (%v)", before, after, d.Path, err)
		}
	}
	if s, err := n.service.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id}); err != nil || s.GetStatus().GetId() != id {
		t.Errorf("a pod is not found: %v", err)
	}
	n.remove(t, id)
}

func (n *node) remove(t *testing.T, id string) {
	test.Checkf(t, test.Err(n.service.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})), "remove a pod")
}
