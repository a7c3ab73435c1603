package recovery

import (
	"errors"
	"testing"

	"github.com/containerd/log"
	"github.com/opencontainers/selinux/go-selinux"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
)

// taken reports whether the library has reserved the categories of a label. The library
// keeps its list even if the kernel has no SELinux.
func taken(t *testing.T, label string) bool {
	t.Helper()
	err := selinux.ReserveLabelV2(label)
	if err == nil {
		selinux.ReleaseLabel(label)
		return false
	}
	if !errors.Is(err, selinux.ErrMCSAlreadyExists) {
		t.Fatal(err)
	}
	return true
}

// A restarted daemon reserves the labels of all sandboxes and containers again.
func TestRecoveryTakesLabels(t *testing.T) {
	const shared, own = "system_u:system_r:container_t:s0:c103,c104", "system_u:system_r:container_t:s0:c105,c106"
	dir := t.TempDir()
	pods, _, err := pod.Open(t.Context(), dir, dir)
	test.Must(t, err)
	shims := test.Value(shim.New(shim.Config{State: dir, Supervisor: "/none", Log: log.L}))(t)
	sandboxRecord := pod.SandboxSpec{Definition: &handler.Definition{Type: handler.OCI}, ProcessLabel: shared}
	sandboxRecord.Config.Msg = &runtimeapi.PodSandboxConfig{}
	test.Must(t, test.Err(pods.Sandboxes.Create("pod", sandboxRecord, pod.SandboxStatus{Phase: pod.PhaseStopped}, store.Relaxed)))
	for id, label := range map[string]string{"same": shared, "own": own} {
		record := pod.ContainerSpec{Sandbox: "pod", ProcessLabel: label}
		record.Config.Msg = &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: id}}
		test.Must(t, test.Err(pods.Containers.Create(id, record, pod.ContainerStatus{Phase: pod.PhaseExited, Erased: true}, store.Relaxed)))
	}
	r := &recovery{Deps: Deps{Pods: pods, Tasks: task.New(pods, nil, shims), Shims: shims}, log: log.L}
	r.takeSandboxes(t.Context())
	r.takeContainers(t.Context())
	if !taken(t, shared) || !taken(t, own) {
		t.Error("categories of recovered objects could be given to other objects")
	}
	r.Pods.Labels.Release(own)
	r.Pods.Labels.Release(shared)
	if taken(t, own) || !taken(t, shared) {
		t.Error("the removal of a container does not free its own categories, or frees its sandbox's")
	}
	r.Pods.Labels.Release(shared)
	if taken(t, shared) {
		t.Error("the categories stay reserved")
	}
}
