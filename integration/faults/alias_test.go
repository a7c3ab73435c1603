package faults

import (
	"fmt"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestAlias runs a pod by the other name of a handler: it is that handler's in
// all but the name.
func TestAlias(t *testing.T) {
	runc := testbed.Part(t, testbed.Runc)
	b := newBed(t, testbed.Options{Runtimes: map[string]string{"runc": runc}, Config: fmt.Sprintf("[runtimes.other]\nalias_of = %q\n", "runc")})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Handler: "other", Image: b.Image, Command: []string{"sleep", "1000"}})
	if i := b.info(t, pod.Container.ID); i.Handler != "other" {
		t.Errorf("the pod is of %+v", i)
	}
	testbed.Same(t, pod.Status(t).GetRuntimeHandler(), "other", "the handler is")
	b.Restart(t)
	pod.Container.Exec(t, "true")
	b.NothingLeft(t, atRest)
}
