package pod

import (
	"encoding/json"
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestMessageKeepsWhatThisBuildDoesNotKnow(t *testing.T) {
	config := &runtimeapi.ContainerConfig{Envs: []*runtimeapi.KeyValue{{Key: "K", Value: []byte{0xff, 0}}}}
	config.ProtoReflect().SetUnknown([]byte{0xf8, 0x3f, 0x01}) // field 1023, varint 1
	in := message[*runtimeapi.ContainerConfig]{Msg: config}
	text := test.Value(json.Marshal(in))(t)
	var out message[*runtimeapi.ContainerConfig]
	test.Must(t, json.Unmarshal(text, &out))
	if !proto.Equal(in.Msg, out.Msg) {
		t.Errorf("got %v", out.Msg)
	}
	var none message[*runtimeapi.ContainerConfig]
	if text, _ := json.Marshal(none); string(text) != "null" || json.Unmarshal(text, &none) != nil || none.Msg != nil {
		t.Errorf("an empty message became %s, %v", text, none.Msg)
	}
}

func TestExitReason(t *testing.T) {
	for _, tc := range []struct {
		code         int32
		oom, unknown bool
		want         string
	}{
		{0, false, false, "Completed"}, {1, false, false, "Error"}, {137, false, false, "Error"},
		{137, true, false, "OOMKilled"}, {0, true, false, "OOMKilled"}, {255, false, true, "Unknown"},
	} {
		test.Equal(t, fmt.Sprintf("exitReason(%d, %v, %v)", tc.code, tc.oom, tc.unknown), ExitReason(tc.code, tc.oom, tc.unknown), tc.want)
	}
}

// The records of a node's pods usually contain the same texts. Equal texts are in memory only once.
func TestTextsAreShared(t *testing.T) {
	var a, b, none Text
	for into, from := range map[*Text]string{&a: `"long"`, &b: `"long"`, &none: `""`} {
		test.Must(t, json.Unmarshal([]byte(from), into))
	}
	if a != b || a.String() != "long" {
		t.Errorf("equal texts are %v and %v", a, b)
	}
	if none != (Text{}) || none.String() != "" {
		t.Errorf("an empty text became %v", none)
	}
	test.Fails(t, json.Unmarshal([]byte("1"), &a), "a number was accepted as a text")
}
