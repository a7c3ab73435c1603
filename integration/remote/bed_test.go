// Package remote runs pods in another CRI daemon through a real `berth serve`:
// in a containerd, and in another berth. What can go wrong with such a daemon is
// done to it, and pods of berth's own handlers must not notice.
package remote

import (
	"fmt"
	"os"
	"path/filepath"
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
	*testbed.Berth
	client   *testbed.Client
	other    *testbed.Daemon
	image    string
	registry *testbed.Registry
	// registries are those that berths know.
	registries []*testbed.Registry
}

// newBed makes one whose berths know more registries than its own.
func newBed(t *testing.T, more ...*testbed.Registry) *bed {
	t.Helper()
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	b := &bed{image: registry.Push(t, "remote/busybox:1", testbed.Busybox(t)), registry: registry, registries: append(more, registry)}
	runc := testbed.Part(t, testbed.Runc)
	b.other = testbed.StartContainerd(t, testbed.ContainerdOptions{
		Runtimes: map[string]string{"runc": runc}, DefaultRuntime: "runc", CNI: testbed.NewCNI(t), Registry: registry,
	})
	b.Berth = testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": runc}, CNI: testbed.NewCNI(t), Registries: b.registries,
		Config: "[handlers]\nprobe_interval = \"1s\"\n",
	})
	b.client = b.Berth.Client
	b.drop(t, "50-legacy", fmt.Sprintf("[runtimes.legacy]\nendpoint = %q\nremote_handler = \"runc\"\n", "unix://"+b.other.Socket))
	b.ready(t, "legacy")
	return b
}

// behind starts another berth, and gives this one a handler inner whose pods are
// in it.
func (b *bed) behind(t *testing.T) *testbed.Berth {
	t.Helper()
	inner := testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": testbed.Part(t, testbed.Runc)}, CNI: testbed.NewCNI(t), Registries: b.registries,
	})
	b.drop(t, "50-inner", fmt.Sprintf("[runtimes.inner]\nendpoint = %q\nremote_handler = \"runc\"\n", "unix://"+inner.Socket))
	b.ready(t, "inner")
	return inner
}

// drop writes a drop-in as a careful installer does: whole, under its name.
func (b *bed) drop(t *testing.T, name, text string) {
	t.Helper()
	temporary := filepath.Join(b.Dir, "conf.d", "."+name)
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, filepath.Join(b.Dir, "conf.d", name+".toml")); err != nil {
		t.Fatal(err)
	}
}

// status is the node's.
func (b *bed) status(t *testing.T) *runtimeapi.StatusResponse {
	t.Helper()
	s, err := b.client.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
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
