// Package forwarding makes every call of the CRI through a real `berth serve` to other CRI
// daemons, some with an older or a newer CRI than berth's, and compares what each side sends with
// what the other receives.
package forwarding

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// patience is much longer than any step here takes on an idle machine.
const patience = 60 * time.Second

// node is a berth with three handlers: one, the default, and two forward to peers, and runc runs
// pods of berth itself.
type node struct {
	*testbed.Berth
	conn     *grpc.ClientConn
	one, two *peer
}

func startNode(t *testing.T, one, two *peer, more string, environment ...string) *node {
	t.Helper()
	n := &node{one: one, two: two}
	lead := func(p *peer) string {
		return fmt.Sprintf("[runtimes.%s]\nendpoint = %q\nremote_handler = \"runc\"\n", p.name, "unix://"+p.socket)
	}
	n.Berth = testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, DefaultRuntime: one.name, CNI: testbed.NewCNI(t),
		Environment: environment,
		Config:      "[log]\nlevel = \"info\"\n" + more + lead(one) + lead(two),
	})
	conn, err := grpc.NewClient("unix://"+n.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	testbed.Must(t, err)
	t.Cleanup(func() {
		testbed.Check(t, conn.Close())
	})
	n.conn = conn
	testbed.Eventually(t, patience, func() error {
		s, err := n.Client.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			return err
		}
		for _, p := range []*peer{one, two} {
			if !announces(s, p.name) {
				return fmt.Errorf("handler %s is not listed: %v", p.name, s.GetStatus().GetConditions())
			}
		}
		return nil
	})
	return n
}

func announces(s *runtimeapi.StatusResponse, handler string) bool {
	for _, h := range s.GetRuntimeHandlers() {
		if h.GetName() == handler {
			return true
		}
	}
	return false
}

// call makes any call and returns its answer. The messages of a stream are merged into one.
func (n *node) call(ctx context.Context, m protoreflect.MethodDescriptor, req proto.Message) (*dynamicpb.Message, error) {
	resp := dynamicpb.NewMessage(m.Output())
	if !m.IsStreamingServer() {
		return resp, n.conn.Invoke(ctx, path(m), req, resp)
	}
	stream, err := n.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path(m))
	if err != nil {
		return nil, err
	}
	if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil {
		return nil, err
	}
	for {
		part := dynamicpb.NewMessage(m.Output())
		switch err := stream.RecvMsg(part); {
		case errors.Is(err, io.EOF):
			return resp, nil
		case err != nil:
			return resp, err
		}
		proto.Merge(resp, part)
	}
}

// bounded is a context for one call.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}
