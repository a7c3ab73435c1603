//go:build berth_vm

package inside

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// kubeletConfig runs static pods without an API server. failCgroupV1 and cgroupDriver have their
// defaults: the kubelet gets the driver from berth.
const kubeletConfig = `{
  "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
  "containerRuntimeEndpoint": "unix:///run/berth/berth.sock", "staticPodPath": "/etc/kubernetes/manifests",
  "address": "127.0.0.1", "readOnlyPort": 10255, "failSwapOn": false,
  "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}}, "authorization": {"mode": "AlwaysAllow"}
}`

const staticPods = `
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "lives", "namespace": "default"}, "spec": {"containers": [
  {"name": "main", "image": %[1]q, "imagePullPolicy": "Never", "command": ["sleep", "100000"],
   "resources": {"requests": {"memory": "32Mi"}, "limits": {"memory": "64Mi"}}}]}}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "eats", "namespace": "default"}, "spec": {"restartPolicy": "Never", "containers": [
  {"name": "main", "image": %[1]q, "imagePullPolicy": "Never", "command": ["sh", "-c", "tail /dev/zero"],
   "resources": {"limits": {"memory": "20Mi"}}}]}}
`

// TestKubeletPod has a kubelet without a control plane run pods on the packaged berth. The kubelet
// also removes the pods that earlier tests left.
func TestKubeletPod(t *testing.T) {
	n := found(t)
	for i, pod := range strings.Split(fmt.Sprintf(staticPods, n.Image), "---") {
		write(t, fmt.Sprintf("/etc/kubernetes/manifests/%d.yaml", i), pod)
	}
	write(t, "/etc/kubernetes/kubelet.json", kubeletConfig)
	run(t, "systemd-run", "--unit=kubelet", "--collect", "/b/kubelet", "--config=/etc/kubernetes/kubelet.json", "--hostname-override=node")
	t.Cleanup(func() {
		if t.Failed() {
			said, err := exec.Command("journalctl", "--no-pager", "-o", "cat", "-u", "kubelet", "-n", "60").CombinedOutput()
			t.Logf("the log of the kubelet (%v):\n%s", err, said)
		}
		testbed.Check(t, errors.Join(os.RemoveAll("/etc/kubernetes"), exec.Command("systemctl", "stop", "kubelet").Run()))
	})
	var lives corev1.Pod
	testbed.Eventually(t, 2*soon, func() error {
		pods, err := kubeletPods()
		if err != nil {
			return err
		}
		for name, check := range map[string]func(corev1.Pod) error{"lives-node": running, "eats-node": outOfMemory} {
			pod, ok := pods[name]
			if !ok || len(pod.Status.ContainerStatuses) != 1 {
				return fmt.Errorf("%s has no status: %+v", name, pod.Status)
			}
			if err := check(pod); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		lives = pods["lives-node"]
		return nil
	})
	_, id, _ := strings.Cut(lives.Status.ContainerStatuses[0].ContainerID, "://")
	status, err := n.client.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	testbed.Must(t, err)
	var info struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal([]byte(status.GetInfo()["info"]), &info); err != nil || info.PID == 0 {
		t.Fatalf("the verbose status of the container has no pid: %v, %v", status.GetInfo(), err)
	}
	cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", info.PID))
	testbed.Must(t, err)
	for _, part := range []string{"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod", ".slice/berth-" + id + ".scope"} {
		testbed.Contains(t, string(cgroup), part, "the cgroup of the container")
	}
}

func kubeletPods() (map[string]corev1.Pod, error) {
	response, err := http.Get("http://127.0.0.1:10255/pods")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var list corev1.PodList
	if err := json.NewDecoder(response.Body).Decode(&list); err != nil {
		return nil, err
	}
	pods := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		pods[pod.Name] = pod
	}
	return pods, nil
}

func running(pod corev1.Pod) error {
	if pod.Status.ContainerStatuses[0].State.Running == nil {
		return fmt.Errorf("the state of the container is %+v", pod.Status.ContainerStatuses[0].State)
	}
	return nil
}

func outOfMemory(pod corev1.Pod) error {
	end := pod.Status.ContainerStatuses[0].State.Terminated
	if end == nil || end.Reason != "OOMKilled" || end.ExitCode != 137 {
		return fmt.Errorf("the state of the container is %+v", pod.Status.ContainerStatuses[0].State)
	}
	return nil
}
