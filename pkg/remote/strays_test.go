package remote

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestWithout(t *testing.T) {
	l := &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{
		{Id: "a", PodSandboxId: "one"}, {PodSandboxId: "one"}, {Id: "b", PodSandboxId: "two"}, {Id: "c", PodSandboxId: "one"},
	}}
	f := encoded(t, newer(l))
	k := &known{}
	k.note(change{kind: madeSandbox, sandbox: &runtimeapi.PodSandbox{Id: "one"}})
	named := without(f, func(item []byte) bool { return text(item, idField) == "" })
	for name, c := range map[string]struct {
		got  frame
		want string
	}{
		"all stay": {without(f, func([]byte) bool { return false }), "a,,b,c,"}, "named": {named, "a,b,c,"},
		"attached": {k.attached(named), "a,c,"}, "none": {without(f, func([]byte) bool { return true }), ""},
	} {
		var read runtimeapi.ListContainersResponse
		test.Must(t, proto.Unmarshal(c.got, &read))
		ids := ""
		for _, item := range read.GetContainers() {
			ids += item.GetId() + ","
		}
		if ids != c.want || len(read.ProtoReflect().GetUnknown()) == 0 {
			t.Errorf("%s: %s and %d bytes that are unknown", name, ids, len(read.ProtoReflect().GetUnknown()))
		}
	}
}
