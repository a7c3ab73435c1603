package sandbox

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

func TestPlanned(t *testing.T) {
	id := strings.Repeat("1", pod.IDLength)
	b := &runs{Deps: Deps{Pods: &pod.Registry{Boot: "boot"}, Binaries: &binaries.Binaries{}}}
	b.Binaries.Tools.PauseRoot = "/root/tools/pause-1"
	r := &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "h", Config: &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
		SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}},
	}}}
	type decided struct {
		pauseRoot, checkpoint string
		alone                 bool // in its supervisor
	}
	for name, c := range map[string]struct {
		d    handler.Definition
		from *pod.Origin
		want decided
	}{
		"without a process":         {handler.Definition{Type: handler.OCI}, &pod.Origin{}, decided{}},
		"with a process":            {handler.Definition{Type: handler.Shim}, &pod.Origin{}, decided{pauseRoot: "pause-1"}},
		"a supervisor for each pod": {handler.Definition{Type: handler.OCI, Supervision: handler.SupervisionPod}, &pod.Origin{}, decided{alone: true}},
		"restored":                  {handler.Definition{Type: handler.OCI}, &pod.Origin{Images: "/c"}, decided{checkpoint: "/c"}},
	} {
		spec := b.planned(id, r, &c.d, &probe.Runtime{}, pod.Pinned{Generation: 7, Binaries: []keep.Binary{{SHA256: "1"}}}, c.from)
		got := decided{spec.Pinned.PauseRoot, spec.Checkpoint, strings.Contains(spec.Supervisor, id[:16])}
		test.Equal(t, name, got, c.want)
		if spec.Handler != "h" || spec.Boot != "boot" || spec.Pinned.Generation != 7 || len(spec.Pinned.Binaries) != 1 || spec.Config.Msg != r.Config {
			t.Errorf("%s: %+v", name, spec)
		}
	}
}
