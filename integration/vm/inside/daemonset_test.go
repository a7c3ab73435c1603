//go:build berth_vm

package inside

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/integration/testbed"
)

const (
	installerManifests = "/b/berth-installer.yaml"
	stays              = `
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q}, "spec": {
  "tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never",
  "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"]}]}}
`
	// Pods of berth's own engine: of a runtime of the node's, and of one that the installer brings.
	ofClass = `
{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": %[1]q}, "handler": %[1]q}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %[1]q}, "spec": {"runtimeClassName": %[1]q,
  "tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": %[2]q, "imagePullPolicy": "IfNotPresent",
  "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"]}]}}
`
)

// TestDaemonSet applies the manifests to a cluster of kubeadm's on containerd: the pod of the
// DaemonSet, which runs in containerd, moves its own kubelet. It is killed at the begin, when
// the kubelet is told of berth, and when it is told of containerd again; each time the kubelet
// begins it anew. Pods of berth's own engine keep it from going back until they are gone.
func TestDaemonSet(t *testing.T) {
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	registry.WriteHosts(t, "/etc/containerd/certs.d")
	image := registry.Push(t, "node/moved:1", testbed.Busybox(t))
	pause := registry.Push(t, "node/pause:1", testbed.Busybox(t, testbed.WithConfig(func(c *v1.Config) { c.Cmd = []string{"sleep", "100000"} })))
	write(t, "/etc/cni/net.d/10-node.conflist", network)
	write(t, "/etc/containerd/config.toml", fmt.Sprintf(containerdConfig, pause))
	write(t, "/etc/systemd/system/containerd.service", containerdUnit)
	preparedForKubeadm(t)
	run(t, "systemctl", "enable", "--now", "containerd")
	for _, file := range []string{"/b/images.tar", "/b/berth.tar"} {
		run(t, "/b/ctr", "--namespace=k8s.io", "images", "import", file)
	}
	theirs := testbed.Dial(t, containerdSocket, "/var/log/pods", "")
	theirs.Pull(t, "", image)
	initialized(t, "unix://"+containerdSocket, "containerd")
	apply(t, fmt.Sprintf(stays, "stays", image))
	run(t, "kubectl", "wait", "--for=condition=Ready", "pod/stays", "--timeout=10m")
	before := container(t, "stays")
	process := life(t, theirs, before)
	files := map[string]string{}
	for _, path := range []string{"/var/lib/kubelet/config.yaml", "/var/lib/kubelet/instance-config.yaml", "/var/lib/kubelet/kubeadm-flags.env"} {
		text, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		files[path] = string(text)
	}
	unharmed := func() {
		t.Helper()
		testbed.Same(t, container(t, "stays"), before, "the pod's container was %s and is", before)
		testbed.Same(t, life(t, theirs, before), process, "its process was %s and is", process)
		testbed.Same(t, run(t, "kubectl", "get", "pod", "stays", "--output=jsonpath={.status.containerStatuses[0].restartCount}"), "0", "times: it was restarted")
	}

	run(t, "kubectl", "apply", "--filename="+installerManifests)
	testbed.Eventually(t, 5*soon, func() error {
		_, err := os.Stat("/var/lib/berth-installer/state.json")
		return err
	})
	run(t, "pkill", "-KILL", "-x", "berth-installer")
	killedWhen(t, "the kubelet is told of berth", toldOfBerth)
	onRuntime(t, "berth")
	run(t, "kubectl", "--namespace=berth-system", "rollout", "status", "daemonset/berth-installer", "--timeout=10m")
	t.Log(run(t, "kubectl", "--namespace=berth-system", "logs", "daemonset/berth-installer"))
	unharmed()
	testbed.Contains(t, run(t, "/opt/berth/current/bin/berth", "handlers"), "containerd (default)  ready", "the handlers")
	apply(t, fmt.Sprintf(stays, "late", image))
	run(t, "kubectl", "wait", "--for=condition=Ready", "pod/late", "--timeout=10m")
	run(t, "kubectl", "exec", "late", "--", "true")
	for _, class := range []string{"crun", "gvisor"} {
		apply(t, fmt.Sprintf(ofClass, class, image))
		run(t, "kubectl", "wait", "--for=condition=Ready", "pod/"+class, "--timeout=10m")
		run(t, "kubectl", "exec", class, "--", "true")
	}
	testbed.Contains(t, run(t, "kubectl", "exec", "gvisor", "--", "dmesg"), "gVisor", "the kernel of a pod of gvisor")

	removed := run(t, "sed", `s/"state": "installed"/"state": "removed"/; s/values: [0-9a-f]*$/values: removed/`, installerManifests)
	apply(t, removed)
	// It waits for pods that containerd cannot take over, and says for which.
	waits(t, "default/crun", "default/gvisor")
	run(t, "kubectl", "delete", "pod", "crun", "--timeout=5m")
	waits(t, "default/gvisor")
	onRuntime(t, "berth")
	run(t, "kubectl", "delete", "pod", "gvisor", "--timeout=5m")
	killedWhen(t, "the kubelet is told of containerd", func() bool { return !toldOfBerth() })
	run(t, "kubectl", "--namespace=berth-system", "rollout", "status", "daemonset/berth-installer", "--timeout=10m")
	onRuntime(t, "containerd")
	unharmed()
	run(t, "kubectl", "exec", "late", "--", "true")
	run(t, "kubectl", "delete", "--filename="+installerManifests, "--timeout=10m")
	for path, text := range files {
		if now, err := os.ReadFile(path); string(now) != text || err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is %q, %v, and was %q", path, now, err, text)
		}
	}
	for _, path := range []string{"/opt/berth", "/etc/berth", "/etc/systemd/system/berth.service", "/var/lib/berth", "/run/berth", "/var/lib/berth-installer"} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	run(t, "kubectl", "wait", "--for=condition=Ready", "node/node", "--timeout=1m")
}

// toldOfBerth returns whether a kubelet that begins now uses berth.
func toldOfBerth() bool {
	_, err := os.Stat("/etc/systemd/system/kubelet.service.d/99-berth.conf")
	return err == nil
}

// killedWhen kills the installer as soon as something is so.
func killedWhen(t *testing.T, what string, is func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 5*soon, true, func(context.Context) (bool, error) { return is(), nil }); err != nil {
		t.Fatalf("it is never so that %s", what)
	}
	run(t, "pkill", "-KILL", "-x", "berth-installer")
}

// waits waits until the installer says that it waits for these pods.
func waits(t *testing.T, pods ...string) {
	t.Helper()
	testbed.Eventually(t, 5*soon, func() error {
		out, err := exec.CommandContext(t.Context(), "kubectl", "--namespace=berth-system", "logs", "daemonset/berth-installer", "--tail=1").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Waiting for pods") || !strings.Contains(string(out), strings.Join(pods, ", ")) {
			return fmt.Errorf("it says %s, %w", out, err)
		}
		return nil
	})
}

// container is that of a pod of one, as the API server knows it, without its scheme.
func container(t *testing.T, pod string) string {
	t.Helper()
	var id string
	testbed.Eventually(t, soon, func() error {
		out, err := exec.CommandContext(t.Context(), "kubectl", "get", "pod", pod, "--output=jsonpath={.status.containerStatuses[0].containerID}").Output()
		var found bool
		if _, id, found = strings.Cut(string(out), "://"); !found || err != nil {
			return fmt.Errorf("its container is %q, %w", out, err)
		}
		return nil
	})
	return id
}
