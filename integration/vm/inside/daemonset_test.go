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
	// ofClass is a RuntimeClass and a pod of this class, which runs in berth's own engine.
	ofClass = `
{"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": %[1]q}, "handler": %[1]q}
---
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %[1]q}, "spec": {"runtimeClassName": %[1]q,
  "tolerations": [{"operator": "Exists"}], "containers": [{"name": "main", "image": %[2]q, "imagePullPolicy": "IfNotPresent",
  "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"]}]}}
`
)

// TestDaemonSet applies the installer's manifests to a kubeadm cluster on containerd. The installer's
// pod, which runs in containerd, moves its own kubelet to berth and back. It is killed at the start
// and when the kubelet is configured for berth and for containerd; each time the kubelet restarts
// it. Pods of berth's own engine delay the move back until they are removed.
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
		testbed.Same(t, container(t, "stays"), before, "the container of the pod, before %s, is", before)
		testbed.Same(t, life(t, theirs, before), process, "the process of the container, before %s, is", process)
		testbed.Same(t, run(t, "kubectl", "get", "pod", "stays", "--output=jsonpath={.status.containerStatuses[0].restartCount}"), "0", "the restart count of the pod is")
	}

	run(t, "kubectl", "apply", "--filename="+installerManifests)
	testbed.Eventually(t, 5*soon, func() error {
		_, err := os.Stat("/var/lib/berth-installer/state.json")
		return err
	})
	run(t, "pkill", "-KILL", "-x", "berth-installer")
	killedWhen(t, "the kubelet is configured for berth", toldOfBerth)
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
	testbed.Contains(t, run(t, "kubectl", "exec", "gvisor", "--", "dmesg"), "gVisor", "dmesg in the pod of gvisor")

	removed := run(t, "sed", `s/"state": "installed"/"state": "removed"/; s/values: [0-9a-f]*$/values: removed/`, installerManifests)
	apply(t, removed)
	// The installer waits for pods that containerd cannot take over, and logs their names.
	waits(t, "default/crun", "default/gvisor")
	run(t, "kubectl", "delete", "pod", "crun", "--timeout=5m")
	waits(t, "default/gvisor")
	onRuntime(t, "berth")
	run(t, "kubectl", "delete", "pod", "gvisor", "--timeout=5m")
	killedWhen(t, "the kubelet is configured for containerd", func() bool { return !toldOfBerth() })
	run(t, "kubectl", "--namespace=berth-system", "rollout", "status", "daemonset/berth-installer", "--timeout=10m")
	onRuntime(t, "containerd")
	unharmed()
	run(t, "kubectl", "exec", "late", "--", "true")
	run(t, "kubectl", "delete", "--filename="+installerManifests, "--timeout=10m")
	for path, text := range files {
		if now, err := os.ReadFile(path); string(now) != text || err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is %q, %v, want %q as before", path, now, err, text)
		}
	}
	for _, path := range []string{"/opt/berth", "/etc/berth", "/etc/systemd/system/berth.service", "/var/lib/berth", "/run/berth", "/var/lib/berth-installer"} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
	run(t, "kubectl", "wait", "--for=condition=Ready", "node/node", "--timeout=1m")
}

// toldOfBerth is whether a kubelet that starts now uses berth.
func toldOfBerth() bool {
	_, err := os.Stat("/etc/systemd/system/kubelet.service.d/99-berth.conf")
	return err == nil
}

// killedWhen kills the installer as soon as a condition is true.
func killedWhen(t *testing.T, what string, is func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 5*soon, true, func(context.Context) (bool, error) { return is(), nil }); err != nil {
		t.Fatalf("waited in vain until %s", what)
	}
	run(t, "pkill", "-KILL", "-x", "berth-installer")
}

// waits waits until the last line of the installer's log is that it waits for these pods.
func waits(t *testing.T, pods ...string) {
	t.Helper()
	testbed.Eventually(t, 5*soon, func() error {
		out, err := exec.CommandContext(t.Context(), "kubectl", "--namespace=berth-system", "logs", "daemonset/berth-installer", "--tail=1").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Waiting for pods") || !strings.Contains(string(out), strings.Join(pods, ", ")) {
			return fmt.Errorf("the log of the installer ends with %s, %w", out, err)
		}
		return nil
	})
}

// container returns the ID of a pod's only container from the API server, without the scheme.
func container(t *testing.T, pod string) string {
	t.Helper()
	var id string
	testbed.Eventually(t, soon, func() error {
		out, err := exec.CommandContext(t.Context(), "kubectl", "get", "pod", pod, "--output=jsonpath={.status.containerStatuses[0].containerID}").Output()
		var found bool
		if _, id, found = strings.Cut(string(out), "://"); !found || err != nil {
			return fmt.Errorf("the container of pod %s is %q, %w", pod, out, err)
		}
		return nil
	})
	return id
}
