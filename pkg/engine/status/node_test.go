package status

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestFeaturesOfABusyNode(t *testing.T) {
	var m featureMemory
	none, users := &runtimeapi.RuntimeHandlerFeatures{}, &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}
	both := &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true, RecursiveReadOnlyMounts: true}
	mounts := &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}
	no, half, all := knownFeatures{}, knownFeatures{recursiveReadOnly: true}, knownFeatures{true, true}
	for _, step := range []struct {
		name, digest  string
		found         *runtimeapi.RuntimeHandlerFeatures
		knownFeatures knownFeatures
		want          *runtimeapi.RuntimeHandlerFeatures
	}{
		{"not known yet", "a", none, no, none},
		{"one of them is", "a", mounts, half, mounts},
		{"nothing this time", "a", none, no, mounts},
		{"both are", "a", both, all, both},
		{"too slow this time", "a", none, no, both},
		{"too slow for one", "a", none, half, users},
		{"another handler", "b", none, no, none},
		{"really lost", "a", none, all, none},
		{"stays lost", "a", none, no, none},
	} {
		if got := m.after(step.digest, step.found, step.knownFeatures); !proto.Equal(got, step.want) {
			t.Errorf("%s: %v", step.name, got)
		}
	}
}
