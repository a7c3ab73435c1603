package router_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

func TestPodsGoWhereTheirHandlerLeads(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	for name, want := range map[string]*routertest.Backend{"": one, "runc": one, "kata": two} {
		sandbox := n.run(t, name)
		d := want.Definition(sandbox)
		if d == nil {
			t.Fatalf("handler %q: the sandbox is not on backend %s", name, want.ID())
		}
		if name != "" && d.Name != name {
			t.Errorf("handler %q: the definition is that of %q", name, d.Name)
		}
		test.Equal(t, fmt.Sprintf("handler %q: the container is on backend", name), n.where(t, n.create(t, sandbox)), want.ID())
	}
	if all := n.router.SandboxCounts(); all["runc"] != 2 || all["kata"] != 1 {
		t.Errorf("sandboxes: %v", all)
	}
}

func TestAPodStaysWithItsOwnerWhateverTheTableSays(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("gone", one)), one, two)
	byDefault, byName := n.run(t, ""), n.run(t, "gone")
	n.registry.Swap(table(t, 2, "runc", ready("runc", two)))

	for _, sandbox := range []string{byDefault, byName} {
		test.Equal(t, "a new container in an old sandbox is on backend", n.where(t, n.create(t, sandbox)), "one")
	}
	test.Check(t, test.Err(n.PodSandboxStatus(ctx(t), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: byName})))
	if sandbox := n.run(t, ""); two.Definition(sandbox) == nil {
		t.Error("a new sandbox does not follow the new table")
	}
	test.Check(t, test.Err(n.RemovePodSandbox(ctx(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: byName})))
	if one.Definition(byName) != nil {
		t.Error("the sandbox of a handler that is gone was not removed")
	}
}

func TestARestartKeepsThePin(t *testing.T) {
	one, two := two()
	before := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
	sandbox := before.run(t, "")
	container := before.create(t, sandbox)

	after := serveReady(t, table(t, 1, "kata", ready("kata", two)), one, two)
	test.Equal(t, "after a restart the container is on backend", after.where(t, container), "one")
	test.Equal(t, "after a restart a new container is on backend", after.where(t, after.create(t, sandbox)), "one")
}

func TestUnknownHandlerIsRefusedBeforeAnythingIsDone(t *testing.T) {
	one, _ := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("gvisor", one)), one)
	_, err := n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "gvisr"})
	wantCode(t, err, codes.InvalidArgument)
	for _, word := range []string{`"gvisr"`, `did you mean "gvisor"`, "runc (default)"} {
		test.Says(t, err, word)
	}
	if len(one.Inventory()) != 0 {
		t.Error("a sandbox was created")
	}
}

func TestHandlersThatAcceptNoPodsSayWhy(t *testing.T) {
	for _, phase := range []handler.Phase{handler.NotReady, handler.Cordoned, handler.Draining} {
		one, _ := two()
		closed := ready("kata", one)
		closed.State = handler.State{Phase: phase, Reason: "/dev/kvm is missing"}
		n := serveReady(t, table(t, 1, "runc", ready("runc", one), closed), one)
		_, err := n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "kata"})
		wantCode(t, err, codes.Unavailable)
		if err == nil || !strings.Contains(err.Error(), `handler "kata": accepts no pods while it is `+string(phase)) || !strings.Contains(err.Error(), "/dev/kvm is missing") {
			t.Errorf("%s: got %v", phase, err)
		}
		if len(one.Inventory()) != 0 {
			t.Error("a sandbox was created")
		}
	}
}

func TestShortIDs(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	first, second := n.run(t, "runc"), n.run(t, "kata") // both are the first of their backend: 0001…
	container := n.create(t, second)

	resp, err := n.PodSandboxStatus(ctx(t), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: second[:6]})
	if err != nil || resp.GetStatus().GetId() != second {
		t.Errorf("got %v, %v", resp, err)
	}
	test.Equal(t, "the container is on backend", n.where(t, container[:6]), "two")
	_, err = n.PodSandboxStatus(ctx(t), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: "000"})
	wantCode(t, err, codes.InvalidArgument)
	test.Says(t, err, first, second)
	test.Check(t, test.Err(n.RemoveContainer(ctx(t), &runtimeapi.RemoveContainerRequest{ContainerId: container[:6]})))
	wantCode(t, test.Err(n.ContainerStatus(ctx(t), &runtimeapi.ContainerStatusRequest{ContainerId: container[:6]})), codes.NotFound)
}

// The CRI defines the results of calls about unknown ids.
func TestUnknownIDs(t *testing.T) {
	one, _ := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
	wants := map[protoreflect.Name]codes.Code{
		"StopPodSandbox": codes.OK, "RemovePodSandbox": codes.OK, "StopContainer": codes.OK, "RemoveContainer": codes.OK,
		"PodSandboxStatus": codes.NotFound, "ContainerStatus": codes.NotFound, "StartContainer": codes.NotFound,
		"CreateContainer": codes.NotFound, "ExecSync": codes.NotFound,
	}
	for _, id := range []string{strings.Repeat("ab", 32), "ab", "not an id"} {
		for _, method := range criMethods(t) {
			if want, there := wants[method.Name()]; there {
				req := message(t, method.Input(), map[protoreflect.Name]string{"pod_sandbox_id": id, "container_id": id})
				t.Run(fmt.Sprintf("%s/%.3s", method.Name(), id), func(t *testing.T) { wantCode(t, n.call(t, method, req), want) })
			}
		}
		list, err := n.ListPodSandbox(ctx(t), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: id}})
		if err != nil || len(list.GetItems()) > 0 {
			t.Errorf("listed by %.3s: %v, %v", id, list, err)
		}
	}
	wantCode(t, test.Err(n.StopPodSandbox(ctx(t), &runtimeapi.StopPodSandboxRequest{})), codes.InvalidArgument)
}

func TestOwnersEndWithWhatTheyOwn(t *testing.T) {
	one, _ := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
	sandbox := n.run(t, "")
	first, second := n.create(t, sandbox), n.create(t, sandbox)

	test.Must(t, test.Err(n.RemoveContainer(ctx(t), &runtimeapi.RemoveContainerRequest{ContainerId: first})))
	if _, err := n.router.Find(first); err == nil {
		t.Error("a removed container has an owner")
	}
	if _, err := n.router.Find(second); err != nil {
		t.Error("the other container has no owner")
	}
	test.Must(t, test.Err(n.RemovePodSandbox(ctx(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox[:8]})))
	for _, id := range []string{sandbox, second} {
		if _, err := n.router.Find(id); err == nil {
			t.Errorf("%s has an owner after its sandbox is removed", id)
		}
	}
}

func TestAFailedRemovalKeepsTheOwner(t *testing.T) {
	one, _ := two()
	one.Fail = failing("RemovePodSandbox", fmt.Errorf("a mount is missing: %w", errdefs.ErrNotFound))
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
	sandbox := n.run(t, "")
	_, err := n.RemovePodSandbox(ctx(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
	// With NotFound, the kubelet would treat the sandbox as removed.
	wantCode(t, err, codes.Internal)
	if _, err := n.router.Find(sandbox); err != nil {
		t.Error("the sandbox lost its owner")
	}
}

// A RunPodSandbox that fails half-way may leave a sandbox that is listed, and
// the kubelet must be able to stop and remove it.
func TestLeftoversCanBeRemoved(t *testing.T) {
	one, _ := two()
	one.Fail = failing("RunPodSandbox, half-way", errors.New("no address is left"))
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
	if _, err := n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{}); err == nil {
		t.Fatal("RunPodSandbox succeeded")
	}
	list, err := n.ListPodSandbox(ctx(t), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(list.GetItems()) != 1 {
		t.Fatalf("got %v, %v", list, err)
	}
	test.Must(t, test.Err(n.RemovePodSandbox(ctx(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: list.GetItems()[0].GetId()})))
	if len(one.Inventory()) != 0 {
		t.Error("the leftover was not removed")
	}
}

// A list may show a sandbox before its creation has returned. A call about the
// sandbox must then reach the backend, and not succeed as one about an unknown id.
func TestASandboxThatIsListedCanBeStopped(t *testing.T) {
	one, _ := two()
	halfway, proceed := make(chan struct{}), make(chan struct{})
	one.Fail = func(_ context.Context, rpc string) error {
		if rpc == "RunPodSandbox, half-way" {
			close(halfway)
			<-proceed
		}
		return nil
	}
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
	var running sync.WaitGroup
	running.Go(func() { n.run(t, "") })
	<-halfway
	list, err := n.ListPodSandbox(ctx(t), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(list.GetItems()) != 1 {
		t.Errorf("got %v, %v", list, err)
	} else if _, err := n.StopPodSandbox(ctx(t), &runtimeapi.StopPodSandboxRequest{PodSandboxId: list.GetItems()[0].GetId()}); err != nil {
		t.Error(err)
	}
	close(proceed)
	running.Wait()
	list, err = n.ListPodSandbox(ctx(t), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(list.GetItems()) != 1 || list.GetItems()[0].GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("the stop did not reach the backend: %v, %v", list, err)
	}
}

// While tables are swapped under load, each pod is only on the backend of its
// owner, with the definition of that handler.
func TestSwapUnderLoad(t *testing.T) {
	one, two := two()
	tables := []*handler.Table[router.Backend]{
		table(t, 1, "a", ready("a", one), ready("b", two)),
		table(t, 2, "b", ready("a", one), ready("b", two)),
	}
	n := serveReady(t, tables[0], one, two)
	done := make(chan struct{})
	var swapping, working sync.WaitGroup
	swapping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
				n.registry.Swap(tables[i%2])
			}
		}
	})
	for range 8 {
		working.Go(func() {
			for range 25 {
				livePod(t, n, one, two)
			}
		})
	}
	working.Wait()
	close(done)
	swapping.Wait()
	if len(one.Inventory())+len(two.Inventory()) != 0 {
		t.Error("pods are left")
	}
	if all := n.router.SandboxCounts(); len(all) != 0 {
		t.Errorf("owners are left: %v", all)
	}
}

// livePod creates and removes a pod, and checks its backend.
func livePod(t *testing.T, n *node, backends ...*routertest.Backend) {
	sandbox := n.run(t, "")
	owner, err := n.router.Find(sandbox)
	if err != nil {
		t.Error(err)
		return
	}
	for _, b := range backends {
		d := b.Definition(sandbox)
		if (d != nil) != (owner.Backend.ID() == b.ID()) || d != nil && d.Name != owner.Handler {
			t.Errorf("sandbox %s is owned by %s under %s, and backend %s has %v", sandbox, owner.Backend.ID(), owner.Handler, b.ID(), d)
		}
	}
	if got := n.where(t, n.create(t, sandbox)); got != owner.Backend.ID() {
		t.Errorf("the container is on backend %s, its sandbox on %s", got, owner.Backend.ID())
	}
	test.Check(t, test.Err(n.ListContainers(ctx(t), &runtimeapi.ListContainersRequest{})))
	test.Check(t, test.Err(n.RemovePodSandbox(ctx(t), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})))
}

// sees is a backend that records the generation of each new sandbox.
type sees struct {
	*routertest.Backend
	generations []uint64
}

func (s *sees) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	s.generations = append(s.generations, handler.GenerationFrom(ctx))
	return s.Backend.RunPodSandbox(ctx, req)
}

// The backend gets the generation of the table that routed a sandbox, which may be
// newer than its handler.
func TestSandboxesKnowTheirGeneration(t *testing.T) {
	b := &sees{Backend: routertest.New("one")}
	n := serveReady[router.Backend](t, table(t, 3, "runc", ready("runc", b)), b)
	n.run(t, "")
	n.registry.Swap(table(t, 7, "runc", ready("runc", b)))
	n.run(t, "runc")
	test.EqualLists(t, "generations", b.generations, []uint64{3, 7})
}
