package engine

import (
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
)

// What is sent is what the typed lists say, in every state and with every filter.
func TestEncodedListsSayWhatListsSay(t *testing.T) {
	k := deafCore(t)
	o := newObjects()
	for i, name := range []string{"a", "b", "c"} {
		c := deafContainer(t, k, handler.Definition{})
		c.sandbox.Spec().CreatedAt, c.Spec().CreatedAt = int64(i), int64(i)
		c.sandbox.Spec().Handler = name
		c.sandbox.Spec().Config.msg = &runtimeapi.PodSandboxConfig{
			Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "n", Uid: name, Attempt: 1},
			Labels:   map[string]string{"name": name}, Annotations: map[string]string{"of": name},
		}
		c.Spec().Config.msg = &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name}, Labels: map[string]string{"name": name}, Annotations: map[string]string{"of": name},
		}
		o.addSandbox(c.sandbox)
		o.addContainer(c)
	}
	sandboxes, containers := &sandboxViews{objects: o}, &containerViews{objects: o}
	same := func(when string, encoded []byte, err error, got, want proto.Message) {
		t.Helper()
		if err == nil {
			err = proto.Unmarshal(encoded, got)
		}
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if !proto.Equal(got, want) {
			t.Errorf("%s: sent %v, want %v", when, got, want)
		}
	}
	compare := func(when string) {
		t.Helper()
		ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
		for _, f := range []*runtimeapi.PodSandboxFilter{nil, {State: ready}, {LabelSelector: map[string]string{"name": "b"}}, {Id: "no"}} {
			encoded, err := sandboxes.EncodedSandboxes(f)
			same(when, encoded, err, &runtimeapi.ListPodSandboxResponse{}, &runtimeapi.ListPodSandboxResponse{Items: sandboxes.list(f)})
		}
		running := &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING}
		for _, f := range []*runtimeapi.ContainerFilter{nil, {State: running}, {LabelSelector: map[string]string{"name": "b"}}, {Id: "no"}} {
			encoded, err := containers.EncodedContainers(f)
			same(when, encoded, err, &runtimeapi.ListContainersResponse{}, &runtimeapi.ListContainersResponse{Containers: containers.list(f)})
		}
	}
	compare("at first")
	for _, next := range []phase{phaseCreated, phaseRunning, phaseExited, phasePlanned} {
		for _, c := range o.allContainers() {
			if err := c.Update(func(st *containerStatus) error { st.Phase = next; return nil }); err != nil {
				t.Fatal(err)
			}
		}
		compare("containers " + string(next))
	}
	for _, next := range []phase{phaseReady, phaseStopped} {
		if err := o.allSandboxes()[1].Update(func(st *sandboxStatus) error { st.Phase = next; return nil }); err != nil {
			t.Fatal(err)
		}
		compare("a sandbox " + string(next))
	}
	o.dropContainer(o.allContainers()[0].ID())
	compare("one less")
}
