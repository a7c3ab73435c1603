package faults

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestReboot cuts the power of a node with pods of each kind. Recorded pods must be
// listed as exited, and must be stopped and removed without an error although nothing
// of them exists any more. The kubelet then runs the next attempt of each pod.
func TestReboot(t *testing.T) {
	runc := testbed.Part(t, testbed.Runc)
	b := newBed(t, testbed.Options{Config: fmt.Sprintf(`
default_runtime = "runc"
[runtimes.runc]
runtime_path = %[1]q
[runtimes.process]
runtime_path = %[1]q
sandbox_process = "always"
[runtimes.shim]
runtime_path = %[2]q
[runtimes.shim.options]
BinaryName = %[1]q
[runtimes.runsc]
runtime_path = %[3]q
`, runc, testbed.Part(t, testbed.RuncShim), testbed.Part(t, testbed.Runsc))})
	atRest := b.Rest(t)
	spec := testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}}
	var pods []*testbed.Pod
	for _, handler := range []string{"runc", "process", "shim", "runsc"} {
		spec.Handler = handler
		pods = append(pods, b.Client.RunPod(t, spec))
	}
	spec.Handler, spec.Sandbox = "runc", withUserNS
	spec.Container = func(c *runtimeapi.ContainerConfig) {
		c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userNS()
	}
	pods = append(pods, b.Client.RunPod(t, spec))
	ended := pods[0].RunContainer(t, "ended", testbed.PodSpec{Image: b.Image, Command: []string{"sh", "-c", "exit 3"}})
	ended.WaitExit(t)
	unstarted := pods[0].CreateContainer(t, "unstarted", testbed.PodSpec{Image: b.Image, Command: []string{"true"}})
	stopped := b.Client.RunSandbox(t, testbed.PodSpec{})
	stopped.Stop(t)
	before := map[string]*runtimeapi.ContainerStatus{}
	for _, pod := range pods {
		before[pod.ID] = pod.Container.Status(t)
	}
	endedBefore := ended.Status(t)

	b.PowerCut(t)
	b.Start(t)

	for _, pod := range append(slices.Clone(pods), stopped) {
		st := pod.Status(t)
		if st.GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY || st.GetCreatedAt() == 0 || !proto.Equal(st.GetMetadata(), pod.Config.GetMetadata()) {
			t.Errorf("%s: after the reboot the sandbox is %v, want the old one, NOTREADY", pod.Handler, st)
		}
	}
	for _, pod := range pods {
		was, is := before[pod.ID], pod.Container.Status(t)
		if is.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || is.GetExitCode() == 0 || is.GetReason() == "" || is.GetFinishedAt() < is.GetStartedAt() {
			t.Errorf("%s: the container that ran before the reboot is %s %d %q, started at %d, finished at %d",
				pod.Handler, is.GetState(), is.GetExitCode(), is.GetReason(), is.GetStartedAt(), is.GetFinishedAt())
		}
		is = proto.Clone(is).(*runtimeapi.ContainerStatus)
		is.State, is.ExitCode, is.Reason, is.Message, is.FinishedAt = was.GetState(), was.GetExitCode(), was.GetReason(), was.GetMessage(), was.GetFinishedAt()
		if !proto.Equal(is, was) {
			t.Errorf("%s: fields other than those of the exit changed: the container was\n%v\nand is\n%v", pod.Handler, was, is)
		}
	}
	if is := ended.Status(t); !proto.Equal(is, endedBefore) {
		t.Errorf("the container that had exited before the reboot was\n%v\nand is\n%v", endedBefore, is)
	}
	if is := unstarted.Status(t); is.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || is.GetExitCode() == 0 || is.GetFinishedAt() == 0 {
		t.Errorf("the container that was not started is %s %d, finished at %d", is.GetState(), is.GetExitCode(), is.GetFinishedAt())
	}

	// The kubelet stops the old sandbox, runs the next one, and later removes the old one.
	for _, pod := range pods {
		pod.Stop(t)
		next := proto.Clone(pod.Config).(*runtimeapi.PodSandboxConfig)
		next.Metadata.Attempt++
		r, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: next, RuntimeHandler: pod.Handler})
		if err != nil {
			t.Errorf("%s: the next attempt: %v", pod.Handler, err)
			continue
		}
		if leases, err := b.CNI.Leases(); err != nil || len(leases) != len(pods)-slices.Index(pods, pod) {
			t.Errorf("%s: wrong number of leased addresses: %q (%v)", pod.Handler, leases, err)
		}
		for _, id := range []string{pod.ID, r.GetPodSandboxId()} {
			ctx := testbed.Within(t, time.Minute)
			if _, err := b.Client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
				t.Errorf("%s: stop: %v", pod.Handler, err)
			}
			if _, err := b.Client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
				t.Errorf("%s: remove: %v", pod.Handler, err)
			}
		}
	}
	stopped.Remove(t)
	if leases, err := b.CNI.Leases(); err != nil || len(leases) != 0 {
		t.Errorf("addresses are still leased: %q (%v)", leases, err)
	}
	b.NothingLeft(t, atRest)
}
