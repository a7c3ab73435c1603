package router

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

// The codec encodes each message to the same bytes as gRPC's own codec.
func TestCodecEncodesAsGRPCDoes(t *testing.T) {
	one := &runtimeapi.Container{Id: strings.Repeat("c", 64), ImageRef: strings.Repeat("x", 1000)}
	many := func(n int) *runtimeapi.ListContainersResponse {
		l := &runtimeapi.ListContainersResponse{}
		for range n {
			l.Containers = append(l.Containers, one)
		}
		return l
	}
	unread := func(l *runtimeapi.ListContainersResponse, n int) *runtimeapi.ListContainersResponse {
		b := test.Value(proto.Marshal(many(n)))(t)
		l.ProtoReflect().SetUnknown(b)
		return l
	}
	standard := encoding.GetCodecV2(grpcproto.Name)
	for name, m := range map[string]*runtimeapi.ListContainersResponse{
		"empty": {}, "small": many(2), "large": many(400), "small and unread": unread(many(2), 3),
		"all unread": unread(many(0), 400), "little unread": unread(many(0), 1),
		"large, and much unread": unread(many(300), 300), "large, and little unread": unread(many(300), 2), "small, and much unread": unread(many(2), 300),
	} {
		want := test.Value(standard.Marshal(m))(t)
		before := len(m.ProtoReflect().GetUnknown())
		got := test.Value(codec{standard}.Marshal(m))(t)
		if !bytes.Equal(got.Materialize(), want.Materialize()) {
			t.Errorf("%s: %d bytes that differ from gRPC's %d", name, got.Len(), want.Len())
		}
		if len(m.ProtoReflect().GetUnknown()) != before {
			t.Errorf("%s: Marshal changed the message", name)
		}
	}
	test.Fails(t, test.Err((codec{standard}).Marshal("no message")), "a value that is not a message was encoded")
	test.Fails(t, test.Err((codec{standard}).Marshal(&runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "\xff" + strings.Repeat("x", large)}}})), "text that is not UTF-8 was encoded")
}
