// Package remote runs pods in another CRI daemon through a real `berth serve`: in a containerd, and
// in another berth. The tests make such a daemon fail in many ways; pods of berth's own handlers
// must not be affected.
package remote

import (
	"fmt"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// patience is much longer than any step here takes on an idle machine.
const patience = 60 * time.Second

// bed is a berth with the handler runc, whose pods it runs itself, and the handler legacy, whose
// pods a containerd runs.
type bed struct {
	*testbed.Bed
	other *testbed.Daemon
}

func newBed(t *testing.T) *bed {
	t.Helper()
	b := newOwn(t)
	runc := testbed.Part(t, testbed.Runc)
	b.other = testbed.StartContainerd(t, testbed.ContainerdOptions{
		Runtimes: map[string]string{"runc": runc}, DefaultRuntime: "runc", CNI: testbed.NewCNI(t), Registry: b.Registry,
	})
	b.DropIn(t, "50-legacy", fmt.Sprintf("[runtimes.legacy]\nendpoint = %q\nremote_handler = \"runc\"\n", "unix://"+b.other.Socket))
	b.ready(t, "legacy")
	return b
}

// behind starts another berth, and adds the handler inner, whose pods the other berth runs.
func (b *bed) behind(t *testing.T) *testbed.Berth {
	t.Helper()
	inner := testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{b.Registry},
	})
	b.DropIn(t, "50-inner", fmt.Sprintf("[runtimes.inner]\nendpoint = %q\nremote_handler = \"runc\"\n", "unix://"+inner.Socket))
	b.ready(t, "inner")
	return inner
}

// status returns the node's status.
func (b *bed) status(t *testing.T) *runtimeapi.StatusResponse {
	t.Helper()
	s, err := b.Client.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	testbed.Must(t, err)
	return s
}

func (b *bed) announces(t *testing.T, handler string) bool {
	for _, h := range b.status(t).GetRuntimeHandlers() {
		if h.GetName() == handler {
			return true
		}
	}
	return false
}

func (b *bed) ready(t *testing.T, handler string) {
	t.Helper()
	testbed.Eventually(t, patience, func() error {
		if !b.announces(t, handler) {
			return fmt.Errorf("the handler %q is not listed: %v", handler, b.status(t).GetStatus().GetConditions())
		}
		return nil
	})
}

// serves fails unless each pod's container runs a program, and the node has no other containers.
func (b *bed) serves(t *testing.T, pods ...*testbed.Pod) {
	t.Helper()
	for _, p := range pods {
		if got := p.Container.Exec(t, "echo", "hello"); got != "hello\n" {
			t.Errorf("exec prints %q", got)
		}
	}
	listed, err := b.Client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(listed.GetContainers()) != len(pods) {
		t.Fatalf("berth lists the containers %v, %v, want %d", listed, err, len(pods))
	}
}
