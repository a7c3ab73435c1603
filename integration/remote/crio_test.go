package remote

import (
	"fmt"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// withCRIO starts a berth with the handler legacy, whose pods a real CRI-O runs.
func withCRIO(t *testing.T) *bed {
	t.Helper()
	b := newOwn(t)
	b.other = testbed.StartCRIO(t, testbed.CRIOOptions{
		// Both names have runc, because Debian's crun is too old for the specs of CRI-O.
		Runtimes:       map[string]string{"runc": testbed.Part(t, testbed.Runc), "other": testbed.Part(t, testbed.Runc)},
		DefaultRuntime: "runc", CNI: testbed.NewCNI(t), Registry: b.Registry,
	})
	b.DropIn(t, "50-legacy", fmt.Sprintf("[runtimes.legacy]\nendpoint = %q\nremote_handler = \"other\"\n", "unix://"+b.other.Socket))
	b.ready(t, "legacy")
	return b
}

// stays exits on SIGTERM, because CRI-O waits two minutes for the containers of a stopped pod.
var stays = []string{"sh", "-c", "trap 'exit 0' TERM; sleep 3600 & wait"}

// TestPodsInCRIO runs pods in a real CRI-O beside berth's own.
func TestPodsInCRIO(t *testing.T) {
	b := withCRIO(t)
	own := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: stays})
	theirs := b.Client.RunPod(t, testbed.PodSpec{Handler: "legacy", Image: b.Image, Command: stays})
	b.serves(t, own, theirs)
	// CRI-O reports the handler of a pod in lists only.
	pods, err := b.Client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: theirs.ID}})
	if err != nil || len(pods.GetItems()) != 1 || pods.GetItems()[0].GetRuntimeHandler() != "legacy" {
		t.Errorf("berth lists %v, %v, want one pod of legacy", pods, err)
	}
	status, err := b.Client.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: theirs.ID})
	if err != nil || status.GetStatus().GetNetwork().GetIp() == "" {
		t.Errorf("the status of CRI-O's pod is %v, %v, want an address", status, err)
	}
	if got := b.status(t).GetInfo()["backends"]; !strings.Contains(got, "cri-o") {
		t.Errorf("the backends are %s, want cri-o among them", got)
	}
	b.Restart(t)
	b.other.Restart(t)
	b.ready(t, "legacy")
	b.serves(t, own, theirs)
	own.Remove(t)
	theirs.Remove(t)
}
