package engine

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/enginetest"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/handler"
)

// The encoded lists equal the typed lists, in every state and with every filter.
func TestEncodedListsSayWhatListsSay(t *testing.T) {
	o := pod.NewIndex()
	for i, name := range []string{"a", "b", "c"} {
		c := enginetest.Container(t, enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, &enginetest.Runner{}))
		c.Sandbox.Spec().CreatedAt, c.Spec().CreatedAt = int64(i), int64(i)
		c.Sandbox.Spec().Handler = name
		c.Sandbox.Spec().Config.Msg = &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "n", Uid: name, Attempt: 1},
			Labels:   map[string]string{"name": name}, Annotations: map[string]string{"of": name},
		}
		c.Spec().Config.Msg = &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Labels: map[string]string{"name": name}, Annotations: map[string]string{"of": name},
		}
		o.AddSandbox(c.Sandbox)
		o.AddContainer(c)
	}
	pods := &pod.Registry{Index: o}
	sandboxes, containers := sandbox.New(sandbox.Deps{Pods: pods}), container.New(container.Deps{Pods: pods})
	same := func(when string, encoded []byte, err error, got, want proto.Message) {
		t.Helper()
		if err == nil {
			err = proto.Unmarshal(encoded, got)
		}
		test.Mustf(t, err, "%s", when)
		if !proto.Equal(got, want) {
			t.Errorf("%s: sent %v, want %v", when, got, want)
		}
	}
	compare := func(when string) {
		t.Helper()
		ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
		for _, f := range []*runtimeapi.PodSandboxFilter{nil, {State: ready}, {LabelSelector: map[string]string{"name": "b"}}, {Id: "no"}} {
			encoded, err := sandboxes.EncodedSandboxes(f)
			same(when, encoded, err, &runtimeapi.ListPodSandboxResponse{}, &runtimeapi.ListPodSandboxResponse{Items: sandboxes.List(f)})
		}
		running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
		for _, f := range []*runtimeapi.ContainerFilter{nil, {State: running}, {LabelSelector: map[string]string{"name": "b"}}, {Id: "no"}} {
			encoded, err := containers.EncodedContainers(f)
			same(when, encoded, err, &runtimeapi.ListContainersResponse{}, &runtimeapi.ListContainersResponse{Containers: containers.List(f)})
		}
	}
	compare("initially")
	for _, next := range []pod.Phase{pod.PhaseCreated, pod.PhaseRunning, pod.PhaseExited, pod.PhasePlanned} {
		for _, c := range o.AllContainers() {
			test.Must(t, c.Update(func(st *pod.ContainerStatus) error { st.Phase = next; return nil }))
		}
		compare("containers " + string(next))
	}
	for _, next := range []pod.Phase{pod.PhaseReady, pod.PhaseStopped} {
		test.Must(t, o.AllSandboxes()[1].Update(func(st *pod.SandboxStatus) error { st.Phase = next; return nil }))
		compare("a sandbox " + string(next))
	}
	o.DropContainer(o.AllContainers()[0].ID())
	compare("with one container removed")
	o.DropSandbox(o.AllSandboxes()[0].ID())
	compare("with one sandbox removed")
}

// A list without a change is not joined again: a kubelet asks every second.
func TestEncodedListIsKept(t *testing.T) {
	o := pod.NewIndex()
	c := enginetest.Container(t, enginetest.Sandbox(t, t.TempDir(), pod.SandboxSpec{Definition: &handler.Definition{}}, &enginetest.Runner{}))
	o.AddContainer(c)
	list := func() []byte { return test.Value(o.EncodedContainers(nil))(t) }
	first := list()
	if second := list(); &first[0] != &second[0] {
		t.Error("the same list was encoded twice")
	}
	test.Must(t, c.Update(func(st *pod.ContainerStatus) error { st.Phase = pod.PhaseExited; return nil }))
	if changed := list(); &first[0] == &changed[0] {
		t.Error("the list of a changed container is the earlier one")
	}
}
