package remote

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
)

// An event of a newer CRI is forwarded, with berth's names of handlers.
func TestNewerEvents(t *testing.T) {
	to := &listener{ctx: t.Context(), heard: make(chan *runtimeapi.ContainerEventResponse, 10)}
	n := newNames([]lastknown.Handler{{Name: "legacy", Remote: "runc"}})
	s := &events{caller: &caller{}, names: n, lists: &lists{names: n, known: &lastknown.Pods{}}}
	newest := runtimeapi.ContainerEventType(99)
	for _, kind := range []runtimeapi.ContainerEventType{newest, newest, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT} {
		e := &runtimeapi.ContainerEventResponse{
			ContainerId: "c", ContainerEventType: kind, PodSandboxStatus: &runtimeapi.PodSandboxStatus{Id: "p", RuntimeHandler: "runc"},
			ContainersStatuses: []*runtimeapi.ContainerStatus{{Image: &runtimeapi.ImageSpec{RuntimeHandler: "runc"}, Mounts: []*runtimeapi.Mount{{Image: &runtimeapi.ImageSpec{RuntimeHandler: "runc"}}}}},
		}
		test.Must(t, s.pass(encoded(t, newer(e)), to))
		if len(to.heard) != 1 {
			t.Fatalf("%v was sent %d times", kind, len(to.heard))
		}
		got := <-to.heard
		of := got.GetContainersStatuses()[0]
		if got.GetContainerEventType() != kind || len(got.ProtoReflect().GetUnknown()) == 0 || got.GetPodSandboxStatus().GetRuntimeHandler() != "legacy" ||
			of.GetImage().GetRuntimeHandler() != "legacy" || of.GetMounts()[0].GetImage().GetRuntimeHandler() != "legacy" {
			t.Errorf("sent %v", got)
		}
	}
}
