package forwarding

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// maxMessage limits messages in the tests. It is above berth's own limit.
const maxMessage = 128 << 20

// peer is a CRI daemon behind a real socket, whose CRI is given by descriptors. It answers berth's
// own calls from its pods, and a test can set the answers to its calls.
type peer struct {
	cri

	name   string
	socket string
	// pods has the ID of a container for the ID of each sandbox.
	mu   sync.Mutex
	pods map[string]string
	// calls counts calls by their names; asked has the last request of each with newer_text.
	calls map[string]int
	asked map[string]*dynamicpb.Message
	// lacking are calls that the peer does not know, answers those whose answer a test has set.
	lacking map[string]bool
	answers map[string]func(*call) error
}

// call is one call of a peer.
type call struct {
	grpc.ServerStream
	method protoreflect.MethodDescriptor
	req    *dynamicpb.Message
}

func (c *call) ctx() context.Context { return c.Context() }

// id returns an ID that no other peer, kind or number has.
func id(kind byte, peer string, number int) string {
	begin := fmt.Sprintf("%c%02x%04x", kind, peer[0], number)
	return begin + strings.Repeat("0", 64-len(begin))
}

func startPeer(t *testing.T, c cri, name string, pods int) *peer {
	t.Helper()
	p := &peer{
		cri: c, name: name, socket: filepath.Join(t.TempDir(), "peer.sock"), pods: map[string]string{},
		calls: map[string]int{}, asked: map[string]*dynamicpb.Message{}, lacking: map[string]bool{}, answers: map[string]func(*call) error{},
	}
	for i := range pods {
		p.pods[id('5', name, i)] = id('c', name, i)
	}
	l, err := net.Listen("unix", p.socket)
	testbed.Must(t, err)
	server := grpc.NewServer(grpc.UnknownServiceHandler(p.serve), grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		testbed.Check(t, <-served)
	})
	return p
}

// answer sets how a call is answered.
func (p *peer) answer(method string, how func(*call) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers[method] = how
}

// counted returns the number of calls since it was last called.
func (p *peer) counted() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.calls
	p.calls = map[string]int{}
	return all
}

// last returns the last request of a call that has newer_text, nil if there was none.
func (p *peer) last(method string) *dynamicpb.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[method]
}

func (p *peer) serve(_ any, stream grpc.ServerStream) error {
	full, _ := grpc.MethodFromServerStream(stream)
	m := p.method(full)
	if m == nil {
		return status.Errorf(codes.Unimplemented, "unknown method %s", full)
	}
	name := string(m.Name())
	p.mu.Lock()
	p.calls[name]++
	lacks, answer := p.lacking[name], p.answers[name]
	p.mu.Unlock()
	if lacks {
		return status.Errorf(codes.Unimplemented, "unknown method %s", full)
	}
	c := &call{stream, m, dynamicpb.NewMessage(m.Input())}
	if err := stream.RecvMsg(c.req); err != nil {
		return err
	}
	if get(c.req, "newer_text") != "" {
		p.mu.Lock()
		p.asked[name] = c.req
		p.mu.Unlock()
		if answer == nil {
			answer = p.fully
		}
	}
	if answer == nil {
		answer = p.basically
	}
	return answer(c)
}

// fully answers with a value in each field.
func (p *peer) fully(c *call) error { return c.SendMsg(p.filling().full(c.method.Output())) }

func (p *peer) filling() filling { return filling{by: p.name, handler: "runc"} }

// basically answers the calls that berth makes by itself, in thisCRI. Its status and lists have
// newer_text if the peer's CRI has that field.
func (p *peer) basically(c *call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	newer := func(m proto.Message) proto.Message { return p.newer(c, m) }
	switch c.method.Name() {
	case "Status":
		return c.SendMsg(newer(&runtimeapi.StatusResponse{
			Status:          &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{{Type: runtimeapi.RuntimeReady, Status: true}, {Type: runtimeapi.NetworkReady, Status: true}}},
			RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}}},
		}))
	case "RuntimeConfig":
		return c.SendMsg(&runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: runtimeapi.CgroupDriver_CGROUPFS}})
	case "ImageStatus":
		return c.SendMsg(&runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: "sha256:1"}})
	case "ListPodSandbox", "StreamPodSandboxes":
		l := &runtimeapi.ListPodSandboxResponse{}
		for _, pod := range slices.Sorted(maps.Keys(p.pods)) {
			l.Items = append(l.Items, &runtimeapi.PodSandbox{Id: pod, Metadata: &runtimeapi.PodSandboxMetadata{Name: pod}, RuntimeHandler: "runc"})
		}
		return c.SendMsg(newer(l))
	case "ListContainers", "StreamContainers":
		l := &runtimeapi.ListContainersResponse{}
		for _, pod := range slices.Sorted(maps.Keys(p.pods)) {
			l.Containers = append(l.Containers, &runtimeapi.Container{Id: p.pods[pod], PodSandboxId: pod, State: runtimeapi.ContainerState_CONTAINER_RUNNING})
		}
		return c.SendMsg(newer(l))
	case "RemovePodSandbox":
		delete(p.pods, get(c.req, "pod_sandbox_id"))
	}
	return c.SendMsg(dynamicpb.NewMessage(c.method.Output()))
}

// newer is an answer with newer_text in each of its messages, if the peer's CRI has that field.
func (p *peer) newer(c *call, m proto.Message) proto.Message {
	encoded, err := proto.Marshal(m)
	if err != nil {
		return m
	}
	d := dynamicpb.NewMessage(c.method.Output())
	if err := proto.Unmarshal(encoded, d); err != nil {
		return m
	}
	p.mark(d)
	return d
}

func (p *peer) mark(m protoreflect.Message) {
	set(m, map[protoreflect.Name]string{"newer_text": p.name})
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() || f.Message() == nil:
		case f.IsList():
			for i := range v.List().Len() {
				p.mark(v.List().Get(i).Message())
			}
		default:
			p.mark(v.Message())
		}
		return true
	})
}
