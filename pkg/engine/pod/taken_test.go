package pod_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestTakenNameSaysWhatToDo(t *testing.T) {
	c := enginetest.Container(t, enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, &enginetest.Runner{}))
	s, o := c.Sandbox, pod.NewIndex()
	o.AddSandbox(s)
	o.AddContainer(c)
	n := reserve.NewNames()
	for owner, want := range map[string]string{s.ID(): "crictl rmp -f " + s.ID(), c.ID(): "crictl rm -f " + c.ID(), "new": "wait until that is done"} {
		test.Must(t, n.Reserve("of "+owner, owner))
		err := o.ExplainTaken(n.Reserve("of "+owner, "another"))
		if !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), "of "+owner) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "next attempt") {
			t.Errorf("%s: %v", owner, err)
		}
	}
}
