package router

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
		if err != nil {
			t.Fatal(err)
		}
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
		if err != nil {
			t.Fatal(err)
		}
		before := len(m.ProtoReflect().GetUnknown())
		got, err := codec{standard, &transit{}}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Materialize(), want.Materialize()) {
			t.Errorf("%s: %d bytes that differ from gRPC's %d", name, got.Len(), want.Len())
		}
		if len(m.ProtoReflect().GetUnknown()) != before {
			t.Errorf("%s: the answer was changed", name)
		}
	}
	if _, err := (codec{standard, &transit{}}).Marshal("no message"); err == nil {
		t.Error("what is no message was encoded")
	}
	if _, err := (codec{standard, &transit{}}).Marshal(&runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{{Id: "\xff" + strings.Repeat("x", large)}}}); err == nil {
		t.Error("text that is no UTF-8 was encoded")
	}
}

func BenchmarkCodec(b *testing.B) {
	half := &runtimeapi.ListContainersResponse{}
	for range 250 {
		half.Containers = append(half.Containers, &runtimeapi.Container{Id: strings.Repeat("c", 64), Labels: map[string]string{"a": strings.Repeat("l", 200), "b": strings.Repeat("l", 80)}})
	}
	encoded, err := proto.Marshal(half)
	if err != nil {
		b.Fatal(err)
	}
	half.ProtoReflect().SetUnknown(encoded)
	standard := encoding.GetCodecV2(grpcproto.Name)
	for name, c := range map[string]encoding.CodecV2{"grpc": standard, "router": codec{standard, &transit{}}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buffers, err := c.Marshal(half)
				if err != nil {
					b.Fatal(err)
				}
				buffers.Free()
			}
		})
	}
}

// TestCodecOfOutputs encodes what a command wrote as gRPC's own codec does, and
// copies none of it.
func TestCodecOfOutputs(t *testing.T) {
	c := codec{encoding.GetCodecV2(grpcproto.Name), &transit{}}
	for _, r := range []*runtimeapi.ExecSyncResponse{
		{Stdout: bytes.Repeat([]byte("o"), large), ExitCode: 3},
		{Stderr: bytes.Repeat([]byte("e"), 10*large), ExitCode: -1},
		{Stdout: bytes.Repeat([]byte("o"), large), Stderr: bytes.Repeat([]byte("e"), large)},
	} {
		got, err := c.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back runtimeapi.ExecSyncResponse
		if err := proto.Unmarshal(got.Materialize(), &back); err != nil || !proto.Equal(&back, r) {
			t.Errorf("exit code %d: it comes back as something else: %v", r.ExitCode, err)
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
		if err != nil || !bytes.Equal(want, got.Materialize()) {
			t.Errorf("exit code %d: %d bytes are not the %d of the usual encoding: %v", r.ExitCode, got.Len(), len(want), err)
		}
		same := false
		for _, piece := range got {
			data := piece.ReadOnlyData()
			same = same || len(data) >= large && (&data[0] == first(r.Stdout) || &data[0] == first(r.Stderr))
		}
		if !same {
			t.Error("the output was copied")
		}
	}
}

func first(b []byte) *byte {
	if len(b) == 0 {
		return nil
	}
	return &b[0]
}

// TestHugeAnswersTakeTurns holds one back until the one before it was sent.
func TestHugeAnswersTakeTurns(t *testing.T) {
	c := codec{encoding.GetCodecV2(grpcproto.Name), &transit{}}
	answer := func() mem.BufferSlice {
		got, err := c.Marshal(&runtimeapi.ExecSyncResponse{Stdout: make([]byte, huge)})
		if err != nil {
			t.Error(err)
		}
		return got
	}
	synctest.Test(t, func(*testing.T) {
		first := answer()
		second := make(chan mem.BufferSlice, 1)
		go func() { second <- answer() }()
		synctest.Wait()
		if len(second) != 0 {
			t.Error("the second did not wait for the first")
		}
		first.Free()
		synctest.Wait()
		if len(second) != 1 {
			t.Error("the second still waits for the first")
		}
		// Nobody reads the second.
		begin := time.Now()
		third := answer()
		if waited := time.Since(begin); waited != transitPatience {
			t.Errorf("the third waited %v", waited)
		}
		third.Free()
		(<-second).Free()
	})
}
