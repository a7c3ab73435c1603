package router

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestRequestsForTheOtherFormKeepWhatIsNewer(t *testing.T) {
	from := &runtimeapi.StreamPodSandboxesRequest{}
	from.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1})
	to := alike(&runtimeapi.ListPodSandboxRequest{}, from)
	test.Equal(t, "bytes of unknown fields", len(to.ProtoReflect().GetUnknown()), 3)
}

// Lists of a newer CRI may have fields beside their items.
func TestConcatenatedMessagesWithOtherFields(t *testing.T) {
	all := concatenated([]*runtimeapi.StatusResponse{
		{RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "a"}}, Status: &runtimeapi.RuntimeStatus{}},
		{RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Name: "b"}}},
	})
	if len(all.GetRuntimeHandlers()) != 2 || all.GetStatus() == nil {
		t.Errorf("the concatenated message is %v", all)
	}
}
