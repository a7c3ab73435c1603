package engine

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestFeaturesOfABusyNode(t *testing.T) {
	var m featureMemory
	none, all := &runtimeapi.RuntimeHandlerFeatures{}, &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}
	for _, step := range []struct {
		name, digest string
		found        *runtimeapi.RuntimeHandlerFeatures
		whole        bool
		want         *runtimeapi.RuntimeHandlerFeatures
	}{
		{"not known yet", "a", none, false, none},
		{"known", "a", all, true, all},
		{"too slow this time", "a", none, false, all},
		{"another handler", "b", none, false, none},
		{"really lost", "a", none, true, none},
		{"stays lost", "a", none, false, none},
	} {
		if got := m.after(step.digest, step.found, step.whole); got != step.want {
			t.Errorf("%s: %v", step.name, got)
		}
	}
}
