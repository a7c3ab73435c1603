package remote

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
	"github.com/berth-cri/berth/pkg/wire"
)

func TestWithout(t *testing.T) {
	l := &runtimeapi.ListContainersResponse{Containers: []*runtimeapi.Container{
		{Id: "a", PodSandboxId: "one"}, {PodSandboxId: "one"}, {Id: "b", PodSandboxId: "two"}, {Id: "c", PodSandboxId: "one"},
	}}
	f := encoded(t, newer(l))
	k := &lastknown.Pods{}
	k.Note(lastknown.Change{Kind: lastknown.CreatedSandbox, Sandbox: &runtimeapi.PodSandbox{Id: "one"}})
	named := wire.Without(f, func(item []byte) bool { return wire.Text(item, wire.IDField) == "" })
	for name, c := range map[string]struct {
		got  wire.Frame
		want string
	}{
		"nothing removed": {wire.Without(f, func([]byte) bool { return false }), "a,,b,c,"}, "items with an id": {named, "a,b,c,"},
		"items of a known sandbox": {k.WithSandbox(named), "a,c,"}, "all removed": {wire.Without(f, func([]byte) bool { return true }), ""},
	} {
		var read runtimeapi.ListContainersResponse
		test.Must(t, proto.Unmarshal(c.got, &read))
		ids := ""
		for _, item := range read.GetContainers() {
			ids += item.GetId() + ","
		}
		if ids != c.want || len(read.ProtoReflect().GetUnknown()) == 0 {
			t.Errorf("%s: items %s and %d bytes of unknown fields", name, ids, len(read.ProtoReflect().GetUnknown()))
		}
	}
}
