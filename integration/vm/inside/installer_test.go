//go:build berth_vm

package inside

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

const (
	movedConfig = `# of this node
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
staticPodPath: /etc/kubernetes/manifests
address: 127.0.0.1
readOnlyPort: 10255
failSwapOn: false
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
`
	movedUnit = `[Service]
ExecStart=/b/kubelet --config=/var/lib/kubelet/config.yaml --hostname-override=node
Restart=always
RestartSec=1
KillMode=process
`
	movedPod = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "default"}, "spec": {"containers": [
  {"name": "main", "image": %q, "imagePullPolicy": "Never", "command": ["sleep", "100000"]}]}}`
)

// TestInstaller has the installer move a real kubelet from a real containerd to berth and
// back, with a pod on it that never notices.
func TestInstaller(t *testing.T) {
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	registry.WriteHosts(t, "/etc/containerd/certs.d")
	image := registry.Push(t, "node/moved:1", testbed.Busybox(t))
	pause := registry.Push(t, "node/pause:1", testbed.Busybox(t, testbed.WithConfig(func(c *v1.Config) { c.Cmd = []string{"sleep", "100000"} })))
	write(t, "/etc/cni/net.d/10-node.conflist", network)
	write(t, "/etc/containerd/config.toml", fmt.Sprintf(containerdConfig, pause))
	write(t, "/etc/systemd/system/containerd.service", containerdUnit)
	write(t, "/etc/systemd/system/kubelet.service", movedUnit)
	write(t, "/var/lib/kubelet/config.yaml", movedConfig)
	write(t, "/etc/kubernetes/manifests/stays.yaml", fmt.Sprintf(movedPod, "stays", image))
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "start", "containerd")
	theirs := testbed.Dial(t, containerdSocket, "/var/log/pods", "")
	theirs.Pull(t, "", image)
	run(t, "systemctl", "start", "kubelet")
	t.Cleanup(func() {
		if t.Failed() {
			said, err := exec.Command("journalctl", "--no-pager", "-o", "cat", "-u", "kubelet", "-u", "berth", "-u", "containerd", "-n", "150").CombinedOutput()
			t.Logf("the services (%v):\n%s", err, said)
		}
	})
	id := runs(t, "stays", "containerd")
	before := life(t, theirs, id)
	unharmed := func(runtime string) {
		t.Helper()
		testbed.Same(t, runs(t, "stays", runtime), id, "the pod's container was %s and is", id)
		testbed.Same(t, life(t, theirs, id), before, "the container's process was %s and is", before)
	}

	install := []string{"--payload=/b/payload", "install", `--runtime={handler: crun, kind: crun, version: "1", source: /usr/bin/crun}`}
	t.Log(run(t, "/b/berth-installer", install...))
	unharmed("berth")
	write(t, "/etc/kubernetes/manifests/late.yaml", fmt.Sprintf(movedPod, "late", image))
	late := runs(t, "late", "berth")
	if _, err := theirs.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: late}); err != nil {
		t.Errorf("a new pod is not in containerd: %v", err)
	}
	testbed.Contains(t, run(t, "/opt/berth/current/bin/berth", "handlers"), "containerd (default)  ready", "the handlers")

	t.Log(run(t, "/b/berth-installer", "--payload=/b/payload", "uninstall"))
	unharmed("containerd")
	if text, err := os.ReadFile("/var/lib/kubelet/config.yaml"); err != nil || string(text) != movedConfig {
		t.Errorf("the kubelet's configuration is %q, %v", text, err)
	}
	for _, path := range []string{"/opt/berth", "/etc/berth", "/etc/systemd/system/berth.service", "/var/lib/berth", "/run/berth", "/var/lib/berth-installer"} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// runs waits for a static pod to run under a runtime, and returns its container.
func runs(t *testing.T, name, runtime string) (id string) {
	t.Helper()
	testbed.Eventually(t, 3*soon, func() error {
		pods, err := kubeletPods()
		if err != nil {
			return err
		}
		pod, ok := pods[name+"-node"]
		if !ok || len(pod.Status.ContainerStatuses) != 1 {
			return fmt.Errorf("%s has no status: %+v", name, pod.Status)
		}
		status := pod.Status.ContainerStatuses[0]
		scheme, rest, _ := strings.Cut(status.ContainerID, "://")
		if err := running(pod); err != nil || scheme != runtime {
			return fmt.Errorf("%s is %s of %s: %w", name, status.ContainerID, runtime, err)
		}
		if status.RestartCount != 0 {
			return fmt.Errorf("it was restarted %d times", status.RestartCount)
		}
		id = rest
		return nil
	})
	return id
}
