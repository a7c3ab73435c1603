package testbed

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestPodsOnAnotherDaemon runs pods with the testbed on containerd: if that works, a failure of the
// same steps on berth is not a fault of the testbed.
func TestPodsOnAnotherDaemon(t *testing.T) {
	NeedNetwork(t)
	Part(t, Containerd)
	registry := NewRegistry(t, RegistryOptions{})
	image := registry.Push(t, "busybox:1", Busybox(t))
	daemon := StartContainerd(t, ContainerdOptions{
		Runtimes: map[string]string{"plain": Part(t, Runc)}, DefaultRuntime: "plain",
		CNI: NewCNI(t), Registry: registry,
	})
	client := daemon.Client
	// The first pod pulls the sandbox image and creates directories that stay.
	client.RunPod(t, PodSpec{Image: image, Command: []string{"sleep", "600"}}).Remove(t)
	before := daemon.Snapshot(t)

	pod := client.RunPod(t, PodSpec{Handler: "plain", Image: image, Command: []string{"sh", "-c", "echo up; sleep 600"}})
	if pod.IP(t) == "" || pod.Ready == 0 {
		t.Errorf("the pod has the address %q, and was ready after %v", pod.IP(t), pod.Ready)
	}
	if line := pod.Container.WaitLog(t, "up"); line.Stream != "stdout" || line.Partial {
		t.Errorf("the log line is %+v", line)
	}
	Same(t, pod.Container.TryExec(t, "sh", "-c", "echo out; echo err >&2; exit 3"), (ExecResult{"out\n", "err\n", 3}), "the result of exec is")
	failing := pod.RunContainer(t, "failing", PodSpec{Image: image, Command: []string{"sh", "-c", "exit 7"}})
	Same(t, failing.WaitExit(t).GetExitCode(), 7, "exit code is")
	during := before.Leaks(daemon.Snapshot(t))
	for _, kind := range []Kind{Mounts, Cgroups, Processes, Ports, Leases, Rules, States, Layers} {
		if !strings.Contains(strings.Join(during, "\n"), string(kind)+" ") {
			t.Errorf("with a running pod the snapshot has no %s:\n%s", kind, indent(during))
		}
	}

	daemon.Kill9(t)
	if daemon.Running() {
		t.Error("the daemon runs after kill -9")
	}
	daemon.Start(t)
	Same(t, pod.Container.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_RUNNING, "after a restart the container is")
	pod.Container.Stop(t, 0)
	pod.Remove(t)
	daemon.NoLeaks(t, before)
}
