// Package remote runs pods in another CRI daemon through a real `berth serve`:
// in a containerd, and in another berth. What can go wrong with such a daemon is
// done to it, and pods of berth's own handlers must not notice.
package remote

import (
	"fmt"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// patience is far above what anything here takes on a machine that is not busy.
const patience = 60 * time.Second

// bed is a berth with a runtime of its own, runc, and a handler legacy whose
// pods are in a containerd.
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

// behind starts another berth, and gives this one a handler inner whose pods are
// in it.
func (b *bed) behind(t *testing.T) *testbed.Berth {
	t.Helper()
	inner := testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{b.Registry},
	})
	b.DropIn(t, "50-inner", fmt.Sprintf("[runtimes.inner]\nendpoint = %q\nremote_handler = \"runc\"\n", "unix://"+inner.Socket))
	b.ready(t, "inner")
	return inner
}

// status is the node's.
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
			return fmt.Errorf("no handler %q: %v", handler, b.status(t).GetStatus().GetConditions())
		}
		return nil
	})
}

// serves runs a program in the container of each pod, which are all that there are.
func (b *bed) serves(t *testing.T, pods ...*testbed.Pod) {
	t.Helper()
	for _, p := range pods {
		if got := p.Container.Exec(t, "echo", "hello"); got != "hello\n" {
			t.Errorf("%q", got)
		}
	}
	listed, err := b.Client.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
	if err != nil || len(listed.GetContainers()) != len(pods) {
		t.Fatalf("%v, %v", listed, err)
	}
}
