//go:build berth_vm

package inside

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

const (
	// As in the packages of Kubernetes. kubeadm writes the flags and the configuration.
	kubeadmUnit = `[Service]
Environment=KUBELET_KUBECONFIG_ARGS="--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment=KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS
Restart=always
RestartSec=10
[Install]
WantedBy=multi-user.target
`
	criSocket = "unix:///run/berth/berth.sock"
	chosen    = `
{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "crun"}, "handler": "crun"}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chosen"}, "spec": {"runtimeClassName": "crun",
  "tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never",
  "command": ["sh", "-c", "echo started; trap 'exit 0' TERM; sleep 100000 & wait"]}]}}
`
)

// TestKubeadm creates and removes a cluster of one node whose only CRI daemon is berth, as
// docs/install.md describes.
func TestKubeadm(t *testing.T) {
	write(t, "/etc/cni/net.d/10-node.conflist", network)
	write(t, "/etc/berth/conf.d/handlers.toml", handlers)
	run(t, "dpkg", "-i", "/b/berth.deb")
	run(t, "systemctl", "enable", "--now", "berth")
	client := dial(t)
	ready(t, client)
	preparedForKubeadm(t)
	t.Log(run(t, "berth", "image", "import", "/b/images.tar"))
	image := pull(t, client, "node/busybox:1")
	initialized(t, criSocket, "berth")

	apply(t, fmt.Sprintf(chosen, image))
	run(t, "kubectl", "wait", "--for=condition=Ready", "pod/chosen", "--timeout=10m")
	testbed.Same(t, run(t, "kubectl", "logs", "chosen"), "started", "the log of the pod is")
	testbed.Contains(t, run(t, "kubectl", "exec", "chosen", "--", "nslookup", "kubernetes.default.svc.cluster.local"), "10.96.0.1", "the cluster's DNS")
	pods, err := client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": "chosen"}}})
	if err != nil || len(pods.GetItems()) != 1 || pods.GetItems()[0].GetRuntimeHandler() != "crun" {
		t.Errorf("berth lists the pod as %v, %v, want one of crun", pods, err)
	}
	t.Log(run(t, "kubeadm", "upgrade", "node"))
	if text, err := os.ReadFile("/var/lib/kubelet/instance-config.yaml"); err != nil || !strings.Contains(string(text), criSocket) {
		t.Errorf("after an upgrade the kubelet's configuration is %q, %v, want berth's socket in it", text, err)
	}

	t.Log(run(t, "kubeadm", "reset", "--force", "--cri-socket", criSocket))
	testbed.Eventually(t, soon, func() error {
		all, err := client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err != nil || len(all.GetItems()) != 0 {
			return fmt.Errorf("after a reset the pods %v are left, %w", all.GetItems(), err)
		}
		return nil
	})
}

// preparedForKubeadm gives a machine what kubeadm expects of a node: the kubelet's unit, IP
// forwarding, and a name server and a default route, which lead nowhere.
func preparedForKubeadm(t *testing.T) {
	t.Helper()
	run(t, "ip", "link", "add", "lan", "type", "dummy")
	run(t, "ip", "address", "add", "192.0.2.10/24", "dev", "lan")
	run(t, "ip", "link", "set", "lan", "up")
	run(t, "ip", "route", "add", "default", "via", "192.0.2.1")
	run(t, "sysctl", "-w", "net.ipv4.ip_forward=1")
	write(t, "/etc/resolv.conf", "nameserver 192.0.2.1\n")
	write(t, "/etc/systemd/system/kubelet.service", kubeadmUnit)
	run(t, "systemctl", "daemon-reload")
	run(t, "systemctl", "enable", "kubelet")
	t.Cleanup(func() {
		if t.Failed() {
			said, err := exec.Command("sh", "-c", "journalctl --no-pager -o cat -u kubelet -n 80; journalctl --no-pager -o cat -u berth -n 80; berth pods; tail -n 20 /var/log/pods/*/*/*.log").CombinedOutput()
			t.Logf("the node (%v):\n%s", err, said)
		}
	})
}

// initialized creates a cluster by kubeadm, and waits until its node is ready.
func initialized(t *testing.T, socket, runtime string) {
	t.Helper()
	version := run(t, "kubeadm", "version", "--output=short")
	// Some calls of kubeadm time out after ten seconds, too soon for an emulated API server.
	for try := 1; ; try++ {
		out, err := exec.CommandContext(t.Context(), "kubeadm", "init", "--cri-socket", socket, "--kubernetes-version", version).CombinedOutput()
		if err == nil {
			t.Logf("%s", out)
			break
		}
		if try == 3 || !strings.Contains(string(out), "context deadline exceeded") {
			t.Fatalf("kubeadm init: %v\n%s", err, out)
		}
		t.Logf("kubeadm init was too slow: %s", out)
		run(t, "kubeadm", "reset", "--force", "--cri-socket", socket)
	}
	t.Setenv("KUBECONFIG", "/etc/kubernetes/admin.conf")
	onRuntime(t, runtime)
	run(t, "kubectl", "wait", "--for=create", "serviceaccount/default", "--timeout=5m")
	run(t, "kubectl", "--namespace=kube-system", "rollout", "status", "daemonset/kube-proxy", "--timeout=10m")
	run(t, "kubectl", "--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=10m")
}

// onRuntime waits until the node is ready and reports that it uses a runtime.
func onRuntime(t *testing.T, runtime string) {
	t.Helper()
	testbed.Eventually(t, 5*soon, func() error {
		out, err := exec.CommandContext(t.Context(), "kubectl", "get", "node", "node",
			`--output=jsonpath={.status.nodeInfo.containerRuntimeVersion} {.status.conditions[?(@.type=="Ready")].status}`).CombinedOutput()
		if got := string(out); err != nil || !strings.HasPrefix(got, runtime+"://") || !strings.HasSuffix(got, " True") {
			return fmt.Errorf("the node is %s (%w), want %s", got, err, runtime)
		}
		return nil
	})
}

func apply(t *testing.T, objects string) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "kubectl", "apply", "--filename=-")
	c.Stdin = strings.NewReader(objects)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}
