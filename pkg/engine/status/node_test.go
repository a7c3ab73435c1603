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
		{"neither known", "a", none, no, none},
		{"mounts known", "a", mounts, half, mounts},
		{"neither known, mounts remembered", "a", none, no, mounts},
		{"both known", "a", both, all, both},
		{"neither known, both remembered", "a", none, no, both},
		{"mounts lost, users remembered", "a", none, half, users},
		{"another handler", "b", none, no, none},
		{"both lost", "a", none, all, none},
		{"both stay lost", "a", none, no, none},
	} {
		if got := m.after(step.digest, step.found, step.knownFeatures); !proto.Equal(got, step.want) {
			t.Errorf("%s: %v", step.name, got)
		}
	}
}
