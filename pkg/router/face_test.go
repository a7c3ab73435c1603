package router_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/containerd/log"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
	"github.com/berth-cri/berth/pkg/router/routertest"
)

// criMethods returns all methods in the descriptors of the CRI.
func criMethods(t *testing.T) (all []protoreflect.MethodDescriptor) {
	t.Helper()
	for _, service := range []protoreflect.FullName{"runtime.v1.RuntimeService", "runtime.v1.ImageService"} {
		d := test.Value(protoregistry.GlobalFiles.FindDescriptorByName(service))(t)
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			all = append(all, methods.Get(i))
		}
	}
	if len(all) < 43 {
		t.Fatalf("the CRI has %d methods", len(all))
	}
	return all
}

// message creates a message and sets those of the fields that its type has.
func message(t *testing.T, d protoreflect.MessageDescriptor, fields map[protoreflect.Name]string) proto.Message {
	t.Helper()
	kind := test.Value(protoregistry.GlobalTypes.FindMessageByName(d.FullName()))(t)
	m := kind.New()
	for name, value := range fields {
		if f := d.Fields().ByName(name); f != nil {
			m.Set(f, protoreflect.ValueOfString(value))
		}
	}
	return m.Interface()
}

// call calls any method and returns its error. It drops the responses.
func (n *node) call(t *testing.T, method protoreflect.MethodDescriptor, req proto.Message) error {
	t.Helper()
	path := fmt.Sprintf("/%s/%s", method.Parent().FullName(), method.Name())
	resp := message(t, method.Output(), nil)
	if !method.IsStreamingServer() {
		return n.conn.Invoke(ctx(t), path, req, resp)
	}
	stream, err := n.conn.NewStream(ctx(t), &grpc.StreamDesc{ServerStreams: true}, path)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil {
		return err
	}
	for err == nil {
		err = stream.RecvMsg(resp)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// An empty list before the pods are known would make the kubelet start each of
// them a second time.
func TestNothingAnswersBeforeItIsReady(t *testing.T) {
	one, _ := two()
	n := serve(t, table(t, 1, "runc", ready("runc", one)), one)
	for _, method := range criMethods(t) {
		err := n.call(t, method, message(t, method.Input(), nil))
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "recovering") {
			t.Errorf("%s: got %v, want Unavailable", method.Name(), err)
		}
	}
	if len(one.Inventory()) != 0 {
		t.Error("a sandbox was created before SetReady")
	}
	n.router.SetReady()
	test.Check(t, test.Err(n.Version(ctx(t), &runtimeapi.VersionRequest{})))
}

// broken panics in every call of the CRI.
type broken struct {
	router.Backend
	id string
}

func (b broken) ID() string { return b.id }

func (b broken) Inventory() []handler.Owned {
	return []handler.Owned{{Sandbox: b.id + "-sandbox", Handler: "runc", Containers: []string{b.id + "-container"}}}
}

// Each method but Version must reach a backend, and a panic there must fail only that
// call, also if backends are called in goroutines.
func TestEveryMethodReachesABackendAndSurvivesIt(t *testing.T) {
	if err := log.SetLevel("fatal"); err != nil { // hides the stacks of these panics
		t.Fatal(err)
	}
	t.Cleanup(func() { test.Check(t, log.SetLevel(quiet)) })
	one, two := broken{id: "one"}, broken{id: "two"}
	for count, backends := range map[int][]broken{1: {one}, 2: {one, two}} {
		n := serveReady(t, table(t, 1, "runc", ready("runc", one)), backends...)
		for _, method := range criMethods(t) {
			t.Run(fmt.Sprintf("%s/backends=%d", method.Name(), count), func(t *testing.T) {
				req := message(t, method.Input(), map[protoreflect.Name]string{
					"pod_sandbox_id": "one-sandbox", "container_id": "one-container",
				})
				want := codes.Internal
				if method.Name() == "Version" { // needs no backend
					want = codes.OK
				}
				wantCode(t, n.call(t, method, req), want)
			})
		}
	}
}

func TestNoBackend(t *testing.T) {
	one, _ := two()
	n := serveReady[*routertest.Backend](t, table(t, 1, "runc", ready("runc", one)))
	_, err := n.ListPodSandbox(ctx(t), &runtimeapi.ListPodSandboxRequest{})
	wantCode(t, err, codes.Unavailable)
	wantCode(t, test.Err(n.stream(t)), codes.Unavailable)
	events := test.Value(n.GetContainerEvents(ctx(t), &runtimeapi.GetEventsRequest{}))(t)
	wantCode(t, test.Err(events.Recv()), codes.Unavailable)
}
