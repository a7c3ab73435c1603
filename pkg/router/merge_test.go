package router_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// failing returns a function for Backend.Fail that fails one method.
func failing(call string, err error) func(context.Context, string) error {
	return func(_ context.Context, rpc string) error {
		if rpc == call {
			return err
		}
		return nil
	}
}

// encoder is a backend that returns its lists encoded.
type encoder struct{ *routertest.Backend }

func (e encoder) EncodedSandboxes(f *runtimeapi.PodSandboxFilter) ([]byte, error) {
	list, err := e.Backend.ListPodSandbox(context.Background(), &runtimeapi.ListPodSandboxRequest{Filter: f})
	if err != nil {
		return nil, err
	}
	return proto.Marshal(list)
}

func (e encoder) EncodedContainers(f *runtimeapi.ContainerFilter) ([]byte, error) {
	list, err := e.Backend.ListContainers(context.Background(), &runtimeapi.ListContainersRequest{Filter: f})
	if err != nil {
		return nil, err
	}
	return proto.Marshal(list)
}

// ListPodSandbox fails, because the router must use the encoded list.
func (encoder) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return nil, errors.New("decoded")
}

func (encoder) ListContainers(context.Context, *runtimeapi.ListContainersRequest) (*runtimeapi.ListContainersResponse, error) {
	return nil, errors.New("decoded")
}

func TestListsHaveThePodsOfAllBackends(t *testing.T) {
	for name, backends := range map[string][]router.Backend{
		"plain":                  {routertest.New("one"), routertest.New("two")},
		"one encoded":            {encoder{routertest.New("one")}},
		"one encoded, one plain": {encoder{routertest.New("one")}, routertest.New("two")},
	} {
		last := backends[len(backends)-1]
		n := serveReady(t, table(t, 1, "runc", ready("runc", backends[0]), ready("kata", last)), backends...)
		want := []string{n.run(t, "runc"), n.run(t, "kata"), n.run(t, "kata")}
		containers := []string{n.create(t, want[0]), n.create(t, want[2])}
		by := want[2]
		slices.Sort(want)
		slices.Sort(containers)
		list, err := n.ListPodSandbox(ctx(t), &runtimeapi.ListPodSandboxRequest{})
		if err != nil || !slices.Equal(idsOf(list.GetItems()), want) {
			t.Errorf("%s: got %v, %v, want %v", name, idsOf(list.GetItems()), err, want)
		}
		one, err := n.ListPodSandbox(ctx(t), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: by}})
		if err != nil || !slices.Equal(idsOf(one.GetItems()), []string{by}) {
			t.Errorf("%s: got %v, %v for %s", name, idsOf(one.GetItems()), err, by)
		}
		streamed, err := n.stream(t)
		if err != nil || !slices.Equal(idsOf(streamed), want) {
			t.Errorf("%s: streamed %v, %v, want %v", name, idsOf(streamed), err, want)
		}
		all, err := n.ListContainers(ctx(t), &runtimeapi.ListContainersRequest{})
		if err != nil || !slices.Equal(idsOf(all.GetContainers()), containers) {
			t.Errorf("%s: got %v, %v, want %v", name, idsOf(all.GetContainers()), err, containers)
		}
		inside, err := n.router.Sandboxes(ctx(t))
		if err != nil || !slices.Equal(idsOf(inside), want) {
			t.Errorf("%s: in the process: got %v, %v, want %v", name, idsOf(inside), err, want)
		}
	}
}

// many is a backend with a list of about 3 MiB.
type many struct{ *routertest.Backend }

func (many) ListPodSandbox(context.Context, *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	labels := map[string]string{"l": strings.Repeat("x", 3<<10)}
	all := &runtimeapi.ListPodSandboxResponse{}
	for i := range 1 << 10 {
		all.Items = append(all.Items, &runtimeapi.PodSandbox{Id: fmt.Sprint(i), Labels: labels})
	}
	return all, nil
}

func TestALargeListIsStreamedInPieces(t *testing.T) {
	b := many{routertest.New("one")}
	n := serveReady(t, table(t, 1, "runc", ready("runc", b)), b)
	stream := test.Value(n.StreamPodSandboxes(ctx(t), &runtimeapi.StreamPodSandboxesRequest{}))(t)
	messages, items := 0, 0
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		test.Must(t, err)
		messages++
		items += len(m.GetPodSandboxes())
	}
	if messages < 2 || items != 1<<10 {
		t.Errorf("%d sandboxes came in %d messages", items, messages)
	}
}

func (n *node) stream(t *testing.T) (all []*runtimeapi.PodSandbox, err error) {
	stream, err := n.StreamPodSandboxes(ctx(t), &runtimeapi.StreamPodSandboxesRequest{})
	for err == nil {
		var m *runtimeapi.StreamPodSandboxesResponse
		if m, err = stream.Recv(); err == nil {
			all = append(all, m.GetPodSandboxes()...)
		}
	}
	if errors.Is(err, io.EOF) {
		return all, nil
	}
	return all, err
}

func idsOf[T interface{ GetId() string }](items []T) (ids []string) {
	for _, i := range items {
		ids = append(ids, i.GetId())
	}
	slices.Sort(ids)
	return ids
}

func TestShortIDsInFilters(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	n.run(t, "runc")
	sandbox := n.run(t, "kata")
	container := n.create(t, sandbox)
	n.create(t, n.run(t, "kata"))

	list, err := n.ListPodSandbox(ctx(t), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: sandbox[:6]}})
	if err != nil || !slices.Equal(idsOf(list.GetItems()), []string{sandbox}) {
		t.Errorf("got %v, %v", list, err)
	}
	for _, f := range []*runtimeapi.ContainerFilter{{Id: container[:6]}, {PodSandboxId: sandbox[:6]}} {
		list, err := n.ListContainers(ctx(t), &runtimeapi.ListContainersRequest{Filter: f})
		if err != nil || !slices.Equal(idsOf(list.GetContainers()), []string{container}) {
			t.Errorf("filter %v: got %v, %v", f, list, err)
		}
	}
	wantCode(t, test.Err(n.ListPodSandbox(ctx(t), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: "000"}})), codes.InvalidArgument)
}

// From a list without the pods of a backend, the kubelet would conclude that they died.
func TestAListIsWholeOrFails(t *testing.T) {
	one, two := two()
	two.Fail = failing("ListPodSandbox", status.Error(codes.ResourceExhausted, "too many"))
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one, two)
	_, err := n.ListPodSandbox(ctx(t), &runtimeapi.ListPodSandboxRequest{})
	wantCode(t, err, codes.ResourceExhausted)
	test.Says(t, err, `backend "two": too many`)
}

func TestAListThatTakesTooLongFails(t *testing.T) {
	one, two := two()
	two.Fail = func(ctx context.Context, rpc string) error {
		if rpc == "ListPodSandbox" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one, two)
	short, cancel := context.WithTimeout(ctx(t), 50*time.Millisecond)
	defer cancel()
	wantCode(t, test.Err(n.ListPodSandbox(short, &runtimeapi.ListPodSandboxRequest{})), codes.DeadlineExceeded)
}

func TestEventsOfAllBackends(t *testing.T) {
	one, two := two()
	for _, backends := range [][]*routertest.Backend{{one}, {one, two}} {
		n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", backends[len(backends)-1])), backends...)
		stream := n.subscribe(t, backends...)
		for _, name := range []string{"runc", "kata", "runc"} {
			want := n.run(t, name)
			event, err := stream.Recv()
			if err != nil || event.GetContainerId() != want {
				t.Fatalf("got %v, %v, want an event of %s", event, err, want)
			}
		}
		n.router.EndStreams()
		wantCode(t, test.Err(stream.Recv()), codes.Unavailable)
		test.Eventually(t, "the subscriptions end", func() bool { return one.Subscribers()+two.Subscribers() == 0 })
	}
}

func TestEventsEndWithAnyBackend(t *testing.T) {
	one, two := two()
	two.Fail = failing("GetContainerEvents", status.Error(codes.Aborted, "lost"))
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one, two)
	stream := test.Value(n.GetContainerEvents(ctx(t), &runtimeapi.GetEventsRequest{}))(t)
	wantCode(t, test.Err(stream.Recv()), codes.Aborted)
	test.Eventually(t, "the other subscription ends", func() bool { return one.Subscribers() == 0 })
}

func (n *node) subscribe(t *testing.T, backends ...*routertest.Backend) grpc.ServerStreamingClient[runtimeapi.ContainerEventResponse] {
	t.Helper()
	stream := test.Value(n.GetContainerEvents(ctx(t), &runtimeapi.GetEventsRequest{}))(t)
	for _, b := range backends {
		test.Eventually(t, "a subscription at "+b.ID(), func() bool { return b.Subscribers() == 1 })
	}
	return stream
}

// If the default backend is away or broken, another backend answers for the node.
func TestAnotherBackendSpeaksForTheNode(t *testing.T) {
	for name, c := range map[string]struct {
		err, others error
		want        codes.Code
	}{
		"away":           {status.Error(codes.Unavailable, "gone"), nil, codes.OK},
		"broken":         {status.Error(codes.Internal, "what it answered is not a message of the CRI"), nil, codes.OK},
		"too slow":       {status.Error(codes.DeadlineExceeded, "slow"), nil, codes.OK},
		"without Status": {status.Error(codes.Unimplemented, "unknown method"), nil, codes.Unimplemented},
		"all broken":     {status.Error(codes.Internal, "first"), errors.New("second"), codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := two()
			one.Fail, two.Fail = failing("Status", c.err), failing("Status", c.others)
			n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
			wantCode(t, test.Err(n.Status(ctx(t), &runtimeapi.StatusRequest{})), c.want)
		})
	}
}

func TestStatus(t *testing.T) {
	one, two := two()
	userns := &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}
	rro := &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}
	one.Features = map[string]*runtimeapi.RuntimeHandlerFeatures{"runc": userns, "": rro, "unrouted": rro}
	two.Features = map[string]*runtimeapi.RuntimeHandlerFeatures{"kata": rro, "runc": rro}
	broken := ready("broken", one)
	broken.State = handler.State{Phase: handler.NotReady, Reason: "missing"}
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("crun", one), ready("kata", two), broken), two, one)

	resp := test.Value(n.Status(ctx(t), &runtimeapi.StatusRequest{}))(t)
	var got []string
	for _, h := range resp.GetRuntimeHandlers() {
		got = append(got, described(h))
	}
	test.EqualLists(t, "handlers", got, []string{": userns", "crun:", "kata: rro", "runc: userns"})
	got = nil
	for _, c := range resp.GetStatus().GetConditions() {
		got = append(got, c.GetType()+" "+c.GetMessage())
	}
	test.EqualLists(t, "conditions", got, []string{"RuntimeReady one", "NetworkReady one", "Healthy-one ", "Healthy-two ", `HandlersReady handler "broken": missing`})
	if !resp.GetFeatures().GetSupplementalGroupsPolicy() {
		t.Error("the node's features are missing")
	}
}

func TestStatusSaysWhoSaidWhat(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	resp, err := n.Status(ctx(t), &runtimeapi.StatusRequest{})
	if err != nil || len(resp.GetInfo()) != 0 {
		t.Errorf("not verbose: %v, %v", resp, err)
	}
	two.Fail = failing("Status", errors.New("out of order"))
	resp = test.Value(n.Status(ctx(t), &runtimeapi.StatusRequest{Verbose: true}))(t)
	var said map[string]struct {
		Status struct{ Conditions []struct{ Type string } }
		Error  string
	}
	test.Must(t, json.Unmarshal([]byte(resp.GetInfo()["backends"]), &said))
	if c := said["one"].Status.Conditions; len(c) != 3 || c[2].Type != "Healthy-one" || !strings.Contains(said["two"].Error, "out of order") {
		t.Errorf("the statuses of the backends are %+v", said)
	}
}

func described(h *runtimeapi.RuntimeHandler) string {
	text := h.GetName() + ":"
	if h.GetFeatures().GetUserNamespaces() {
		text += " userns"
	}
	if h.GetFeatures().GetRecursiveReadOnlyMounts() {
		text += " rro"
	}
	return text
}

func TestASickBackendDoesNotMakeTheNodeSick(t *testing.T) {
	one, two := two()
	two.Fail = failing("Status", errors.New("out of order"))
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	resp, err := n.Status(ctx(t), &runtimeapi.StatusRequest{})
	if err != nil || len(resp.GetStatus().GetConditions()) != 4 {
		t.Errorf("got %v, %v", resp, err)
	}
	n.registry.Swap(table(t, 2, "kata", ready("runc", one), ready("kata", two)))
	if resp, err = n.Status(ctx(t), &runtimeapi.StatusRequest{}); err != nil || len(resp.GetStatus().GetConditions()) != 4 {
		t.Errorf("with a failing default backend: %v, %v", resp, err)
	}
}

func TestTheDefaultsBackendSpeaksForTheNode(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "kata", ready("runc", one), ready("kata", two)), one, two)
	before, err := n.Version(ctx(t), &runtimeapi.VersionRequest{})
	if err != nil || before.GetRuntimeName() != "berth" {
		t.Errorf("got %v, %v", before, err)
	}
	n.registry.Swap(table(t, 2, "runc", ready("runc", one), ready("kata", two)))
	if v, err := n.Version(ctx(t), &runtimeapi.VersionRequest{}); err != nil || v.GetRuntimeName() != before.GetRuntimeName() {
		t.Errorf("another default handler changes the runtime's name: %v, %v", v, err)
	}
	n.registry.Swap(table(t, 3, "kata", ready("runc", one), ready("kata", two)))
	fs, err := n.images.ImageFsInfo(ctx(t), &runtimeapi.ImageFsInfoRequest{})
	if err != nil || fs.GetImageFilesystems()[0].GetFsId().GetMountpoint() != "two" {
		t.Errorf("got %v, %v", fs, err)
	}
}

func TestImagesGoByTheirHandler(t *testing.T) {
	one, two := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("kata", two)), one, two)
	for name, want := range map[string]string{"": "one/runc", "runc": "one/runc", "kata": "two/kata"} {
		resp, err := n.pull(t, name)
		if err != nil || resp.GetImageRef() != want {
			t.Errorf("handler %q: got %v, %v, want %s", name, resp, err, want)
		}
	}
	wantCode(t, test.Err(n.pull(t, "none")), codes.InvalidArgument)
}

// A pull without a handler uses the pod's handler, because the handler decides what is pulled,
// even if all handlers share one store. Most kubelets send no handler.
func TestImagesGoByTheirPod(t *testing.T) {
	one, _ := two()
	n := serveReady(t, table(t, 1, "runc", ready("runc", one), ready("wasm", one)), one)
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "a", Namespace: "b", Uid: "of-the-pod"}}
	test.Must(t, test.Err(n.RunPodSandbox(ctx(t), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "wasm", Config: config})))
	other := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Uid: "of-nobody"}}
	for _, tc := range []struct {
		handler string
		pod     *runtimeapi.PodSandboxConfig
		want    string
	}{{"", config, "one/wasm"}, {"runc", config, "one/runc"}, {"", nil, "one/runc"}, {"", other, "one/runc"}} {
		resp, err := n.images.PullImage(ctx(t), &runtimeapi.PullImageRequest{
			Image: &runtimeapi.ImageSpec{Image: "busybox", RuntimeHandler: tc.handler}, SandboxConfig: tc.pod,
		})
		if err != nil || resp.GetImageRef() != tc.want {
			t.Errorf("handler %q, pod %v: got %v, %v, want %s", tc.handler, tc.pod, resp, err, tc.want)
		}
	}
}

// The kubelet needs images, and the size of their disk, also on a node whose
// default handler is broken.
func TestImagesOfABrokenDefault(t *testing.T) {
	one, _ := two()
	broken := ready("kata", one)
	broken.State = handler.State{Phase: handler.NotReady, Reason: "missing"}
	n := serveReady(t, table(t, 1, "kata", broken), one)
	test.Check(t, test.Err(n.images.ImageFsInfo(ctx(t), &runtimeapi.ImageFsInfoRequest{})))
	resp, err := n.pull(t, "")
	if err != nil || resp.GetImageRef() != "one/" {
		t.Errorf("got %v, %v", resp, err)
	}
	wantCode(t, test.Err(n.pull(t, "kata")), codes.Unavailable)
}

// The word that the kubelet parses must stay at the beginning of the error.
func TestPullErrorsKeepTheirFirstWord(t *testing.T) {
	one, _ := two()
	one.Fail = failing("PullImage", status.Error(codes.Unavailable, "RegistryUnavailable: connection refused"))
	n := serveReady(t, table(t, 1, "runc", ready("runc", one)), one)
	for _, name := range []string{"", "runc"} {
		_, err := n.pull(t, name)
		wantCode(t, err, codes.Unknown)
		if !strings.HasPrefix(status.Convert(err).Message(), "RegistryUnavailable") {
			t.Errorf("handler %q: got %v", name, err)
		}
	}
}

func (n *node) pull(t *testing.T, name string) (*runtimeapi.PullImageResponse, error) {
	return n.images.PullImage(ctx(t), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: "busybox", RuntimeHandler: name}})
}

// A backend with old pods of a handler may report its features too. Only those of
// the backend that gets the handler's new pods count.
func TestFeaturesAreOfWhereNewPodsGo(t *testing.T) {
	one, two := two()
	yes, no := &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}, &runtimeapi.RuntimeHandlerFeatures{}
	one.Features = map[string]*runtimeapi.RuntimeHandlerFeatures{"moved": no, "gone": yes}
	two.Features = map[string]*runtimeapi.RuntimeHandlerFeatures{"moved": yes}
	n := serveReady(t, table(t, 1, "main", ready("main", one), ready("moved", two), ready("gone", two)), one, two)
	s := test.Value(n.Status(ctx(t), &runtimeapi.StatusRequest{}))(t)
	for _, h := range s.GetRuntimeHandlers() {
		if want := h.GetName() == "moved" || h.GetName() == "gone"; h.GetFeatures().GetUserNamespaces() != want {
			t.Errorf("user namespaces of handler %q: %v", h.GetName(), !want)
		}
	}
}
