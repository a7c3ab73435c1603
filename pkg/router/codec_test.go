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

// What clients get is what gRPC's own codec would have sent.
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
		b, err := proto.Marshal(many(n))
		test.Must(t, err)
		l.ProtoReflect().SetUnknown(b)
		return l
	}
	standard := encoding.GetCodecV2(grpcproto.Name)
	for name, m := range map[string]*runtimeapi.ListContainersResponse{
		"empty": {}, "small": many(2), "large": many(400), "small and unread": unread(many(2), 3),
		"all unread": unread(many(0), 400), "little unread": unread(many(0), 1),
		"large, and much unread": unread(many(300), 300), "large, and little unread": unread(many(300), 2), "small, and much unread": unread(many(2), 300),
	} {
		want, err := standard.Marshal(m)
		test.Must(t, err)
		before := len(m.ProtoReflect().GetUnknown())
		got, err := codec{standard}.Marshal(m)
		test.Must(t, err)
		if !bytes.Equal(got.Materialize(), want.Materialize()) {
			t.Errorf("%s: %d bytes that differ from gRPC's %d", name, got.Len(), want.Len())
		}
		if len(m.ProtoReflect().GetUnknown()) != before {
			t.Errorf("%s: the answer was changed", name)
		}
	}
	if _, err := (codec{standard}).Marshal("no message"); err == nil {
		t.Error("what is no message was encoded")
	}
	if _, err := (codec{standard}).Marshal(&runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "\xff" + strings.Repeat("x", large)}}}); err == nil {
		t.Error("text that is no UTF-8 was encoded")
	}
}

func BenchmarkCodec(b *testing.B) {
	half := &runtimeapi.ListContainersResponse{}
	for range 250 {
		half.Containers = append(half.Containers, &runtimeapi.Container{Id: strings.Repeat("c", 64), Labels: map[string]string{"a": strings.Repeat("l", 200), "b": strings.Repeat("l", 80)}})
	}
	encoded, err := proto.Marshal(half)
	test.Must(b, err)
	half.ProtoReflect().SetUnknown(encoded)
	standard := encoding.GetCodecV2(grpcproto.Name)
	for name, c := range map[string]encoding.CodecV2{"grpc": standard, "router": codec{standard}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buffers, err := c.Marshal(half)
				test.Must(b, err)
				buffers.Free()
			}
		})
	}
}
