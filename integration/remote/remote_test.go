package remote

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

func TestPodsInAnotherDaemon(t *testing.T) {
	b := newBed(t)
	own := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})
	theirs := b.Client.RunPod(t, testbed.PodSpec{Handler: "legacy", Image: b.Image, Command: []string{"sleep", "3600"}})
	for _, p := range []*testbed.Pod{own, theirs} {
		if got := p.Container.Exec(t, "echo", "hello"); got != "hello\n" {
			t.Errorf("%q", got)
		}
	}
	listed, err := b.Client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(listed.GetContainers()) != 2 {
		t.Fatalf("%v, %v", listed, err)
	}
	b.Restart(t)
	for _, p := range []*testbed.Pod{own, theirs} {
		if got := p.Container.Exec(t, "echo", "again"); got != "again\n" {
			t.Errorf("%q", got)
		}
		p.Remove(t)
	}
}
