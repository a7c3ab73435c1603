package remote

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// Handlers of a node. berth runs the pods of own; other daemons run those of inner and legacy.
const (
	own    = "own"
	inner  = "inner"
	legacy = "legacy"
)

// node is a berth, front, that runs pods itself, in another berth, and in a containerd.
type node struct {
	front    *testbed.Berth
	others   map[string]*testbed.Daemon
	client   *testbed.Client
	gates    *gates
	registry *testbed.Registry
	image    string
	made     int
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{gates: newGates(t)}
	n.registry = testbed.NewRegistry(t, testbed.RegistryOptions{Wrap: n.gates.pulls})
	n.image = n.registry.Push(t, "chaos/busybox:1", testbed.Busybox(t))
	runtime := n.gates.runtime(t, testbed.Part(t, testbed.Runc))
	containerd := testbed.StartContainerd(t, testbed.ContainerdOptions{
		Runtimes: map[string]string{"runc": runtime}, DefaultRuntime: "runc", CNI: n.gates.network(t), Registry: n.registry,
	})
	berth := testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": runtime}, CNI: n.gates.network(t), Registries: []*testbed.Registry{n.registry},
	})
	n.others = map[string]*testbed.Daemon{inner: berth.Daemon, legacy: containerd}
	config := "[handlers]\nprobe_interval = \"1s\"\n"
	for name, d := range n.others {
		config += fmt.Sprintf("[runtimes.%s]\nendpoint = %q\nremote_handler = \"runc\"\n", name, "unix://"+d.Socket)
	}
	n.front = testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{own: runtime}, CNI: n.gates.network(t), Registries: []*testbed.Registry{n.registry}, Config: config,
	})
	n.client = n.front.Client
	for name := range n.others {
		n.reached(t, name)
	}
	for _, name := range []string{own, inner, legacy} {
		n.client.Pull(t, name, n.image)
	}
	return n
}

// reached waits until berth can call the daemon of a handler.
func (n *node) reached(t *testing.T, handler string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		_, err := n.client.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: "none", RuntimeHandler: handler}})
		return err
	})
}

// strike makes a daemon unresponsive, and undoes that.
type strike struct {
	name string
	do   func(t *testing.T, d *testbed.Daemon)
	undo func(t *testing.T, d *testbed.Daemon)
}

var strikes = []strike{
	{
		name: "stopped",
		do: func(t *testing.T, d *testbed.Daemon) {
			signal(t, d, syscall.SIGSTOP)
			// A stopped process cannot exit at the end of the test.
			t.Cleanup(func() { _ = syscall.Kill(d.PID(), syscall.SIGCONT) })
		},
		undo: func(t *testing.T, d *testbed.Daemon) { signal(t, d, syscall.SIGCONT) },
	},
	{
		name: "killed",
		do:   func(t *testing.T, d *testbed.Daemon) { d.Kill9(t) },
		undo: func(t *testing.T, d *testbed.Daemon) { d.Start(t) },
	},
}

// TestStruckAtTenPoints stops and kills the daemons while pods of both other daemons are at each of
// the points, all at the same time. Afterwards a kubelet must bring each pod to its wanted state.
func TestStruckAtTenPoints(t *testing.T) {
	n := newNode(t)
	var always []string
	for _, name := range []string{own, inner, legacy} {
		pod := n.client.RunPod(t, testbed.PodSpec{Handler: name, Image: n.image, Command: []string{"sleep", "3600"}})
		always = append(always, pod.ID, pod.Container.ID)
	}
	daemons := []*testbed.Daemon{n.front.Daemon, n.others[inner], n.others[legacy]}
	var rest []testbed.Snapshot
	for _, d := range daemons {
		rest = append(rest, d.Snapshot(t))
	}
	for _, row := range []struct {
		name   string
		struck []*testbed.Daemon
		// away is whether to wait until berth refuses calls to the struck daemons.
		away bool
	}{
		{"the others", daemons[1:], true},
		{"the front", daemons[:1], false},
	} {
		for _, s := range strikes {
			if !t.Run(row.name+" "+s.name, func(t *testing.T) {
				n.strike(t, s, row.struck, row.away, always)
				// A containerd that is killed, or whose caller cancels a call, keeps the snapshots of
				// unfinished containers for a day by a lease.
				rest[len(rest)-1][testbed.Layers] = n.others[legacy].Snapshot(t)[testbed.Layers]
				for i, d := range daemons {
					d.NoLeaks(t, rest[i])
				}
			}) {
				return // what is left would fail the next subtests
			}
		}
	}
}

// strike brings a pod to each point, strikes the daemons, undoes that, and settles the pods.
func (n *node) strike(t *testing.T, s strike, struck []*testbed.Daemon, others bool, always []string) {
	type atPoint struct {
		point
		*subject
	}
	var cases []atPoint
	for _, handler := range []string{inner, legacy} {
		for _, p := range points {
			cases = append(cases, atPoint{p, n.newSubject(t, p, handler)})
		}
	}
	each := func(f func(t *testing.T, c atPoint)) {
		var all sync.WaitGroup
		for _, c := range cases {
			all.Go(func() { f(t, c) })
		}
		all.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	each(func(t *testing.T, c atPoint) { c.prepare(t, c.subject) })

	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	var acting sync.WaitGroup
	for _, c := range cases {
		if c.act != nil {
			acting.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, tryTimeout)
				defer cancel()
				if err := c.act(ctx, c.subject); err != nil {
					t.Logf("%s under %s: %v", c.point.name, c.handler, err)
				}
			})
		}
	}
	each(func(t *testing.T, c atPoint) {
		if c.begun != nil {
			testbed.Eventually(t, patience, func() error {
				if !c.begun(c.subject) {
					return fmt.Errorf("%s under %s is not in progress yet", c.point.name, c.handler)
				}
				return nil
			})
		}
	})
	for _, d := range struck {
		s.do(t, d)
	}
	begin := time.Now()
	n.gates.open(t)
	if others {
		n.away(t, always)
		// Objects whose creation was in progress may be listed or not.
		if _, err := listed(t, n.client); err != nil {
			t.Logf("list while the other daemons are %s: %v", s.name, err)
		}
	} else {
		time.Sleep(300 * time.Millisecond)
	}
	if !struck[0].Running() {
		n.gates.passed(t)
	}
	for _, d := range struck {
		s.undo(t, d)
	}
	t.Logf("the daemons were away for %v", time.Since(begin))
	acting.Wait()
	each(func(t *testing.T, c atPoint) {
		until(t, c.point.name+" under "+c.handler, func(ctx context.Context) error { return c.settle(ctx, c.subject) })
	})
	n.agree(t)
	each(func(t *testing.T, c atPoint) { until(t, "remove "+c.point.name+" under "+c.handler, c.gone) })
}

// away waits until calls about the other daemons' pods are refused. Calls about berth's own pod
// must be answered meanwhile.
func (n *node) away(t *testing.T, always []string) {
	t.Helper()
	for at, handler := range []string{inner, legacy} {
		testbed.Eventually(t, patience, func() error {
			ctx, cancel := context.WithTimeout(t.Context(), tryTimeout)
			defer cancel()
			begin := time.Now()
			if _, err := n.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: always[1]}); err != nil || time.Since(begin) > patience/4 {
				t.Errorf("the status of berth's own pod after %v: %v", time.Since(begin), err)
			}
			_, err := n.client.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: always[3+2*at]})
			if status.Code(err) != codes.Unavailable {
				return fmt.Errorf("status of a container of %s: %w, want unavailable", handler, err)
			}
			return nil
		})
	}
}

// agree waits until berth lists the same pods and containers as each other daemon itself.
func (n *node) agree(t *testing.T) {
	t.Helper()
	for handler, d := range n.others {
		testbed.Eventually(t, patience, func() error {
			direct, err := states(t.Context(), d.Client, "runc")
			if err != nil {
				return err
			}
			through, err := states(t.Context(), n.client, handler)
			if err != nil {
				return err
			}
			if fmt.Sprint(direct) != fmt.Sprint(through) {
				return fmt.Errorf("the daemon of %s lists\n%v\nbut berth\n%v", handler, direct, through)
			}
			return nil
		})
	}
}

// states returns the states of all sandboxes and containers of a handler by their IDs.
func states(ctx context.Context, c *testbed.Client, handler string) (map[string]string, error) {
	all := map[string]string{}
	sandboxes, err := c.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	for _, s := range sandboxes.GetItems() {
		if s.GetRuntimeHandler() == handler {
			all[s.GetId()] = s.GetState().String()
		}
	}
	containers, err := c.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	for _, c := range containers.GetContainers() {
		if all[c.GetPodSandboxId()] != "" {
			all[c.GetId()] = c.GetState().String()
		}
	}
	return all, err
}
