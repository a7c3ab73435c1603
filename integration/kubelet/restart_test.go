package kubelet

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// restarts kills the kubelet, then berth, then both. Each time the pods must run on unchanged.
func (b *bed) restarts(t *testing.T) {
	n := b.NewNamespace(t, b.berth.Image)
	for _, class := range b.classes {
		n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: steady}}
spec:
  runtimeClassName: %[1]s
  terminationGracePeriodSeconds: 1
  volumes: [{name: empty, emptyDir: {}}]
  initContainers:
  - {name: first, image: IMAGE, command: [sh, -c, 'echo once >> /empty/first'], volumeMounts: [{name: empty, mountPath: /empty}]}
  - {name: sidecar, image: IMAGE, restartPolicy: Always, command: [sleep, "3600"]}
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, 'httpd -p 8080 -h /; i=0; while :; do echo tick $i; i=$((i+1)); sleep 0.2; done']
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 20}
    readinessProbe: {httpGet: {path: /etc/passwd, port: 8080}, periodSeconds: 1}
    volumeMounts: [{name: empty, mountPath: /empty}]
  - {name: other, image: IMAGE, command: [sleep, "3600"]}
`, class.name))
	}
	for _, class := range b.classes {
		n.WaitReady(t, class.name)
	}
	before := n.identities(t, "app=steady")
	for _, cut := range []struct {
		name string
		cut  func(*testing.T)
	}{
		{"kubelet", func(t *testing.T) { b.KillKubelet(t); b.StartKubelet(t) }},
		{"berth", func(t *testing.T) { b.berth.Kill9(t); b.berth.Start(t) }},
		{"both", func(t *testing.T) { b.KillKubelet(t); b.berth.Kill9(t); b.berth.Start(t); b.StartKubelet(t) }},
	} {
		t.Run(cut.name, func(t *testing.T) {
			cut.cut(t)
			b.worksAgain(t, n, cut.name)
			for _, class := range b.classes {
				// A kubelet that just started must first probe the pod.
				n.WaitReady(t, class.name)
				n.Exec(t, class.name, "true")
				n.session(t, "logs", "--follow", "--tail=1", "--container=main", class.name).wait(t, "tick ")
			}
			if after := n.identities(t, "app=steady"); !slices.Equal(after, before) {
				t.Errorf("the pods changed: now\n%s\nbefore\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
			}
		})
	}
	for _, class := range b.classes {
		testbed.Same(t, n.Exec(t, class.name, "cat", "/empty/first"), "once\n", "%s: the file with a line per run of the init container has", class.name)
		noGaps(t, n, class.name)
	}
	t.Run("exit while berth is down", func(t *testing.T) { b.exitMeanwhile(t, n) })
}

// worksAgain runs a new pod to completion. By then the kubelet has also synced the old pods.
func (b *bed) worksAgain(t *testing.T, n *Namespace, name string) {
	t.Helper()
	n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: after-%s}
spec:
  restartPolicy: Never
  containers: [{name: main, image: IMAGE, command: ["true"]}]
`, name))
	n.WaitPhase(t, "after-"+name, corev1.PodSucceeded)
	n.Delete(t, "after-"+name)
}

// identities returns a line per container of the pods with a label. It has the container's ID and
// the pod's address, which change when either is replaced.
func (n *Namespace) identities(t *testing.T, label string) []string {
	t.Helper()
	var identities []string
	for _, pod := range n.podsOf(t, label) {
		for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			identities = append(identities, fmt.Sprintf("%s %s %s restarts %d ip %s", pod.Name, status.Name, status.ContainerID, status.RestartCount, pod.Status.PodIP))
		}
	}
	slices.Sort(identities)
	return identities
}

// noGaps checks that the log of container main has all its lines, numbered from 0.
func noGaps(t *testing.T, n *Namespace, pod string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(n.Kubectl(t, "logs", "--container=main", pod)), "\n")
	for i, line := range lines {
		if want := fmt.Sprintf("tick %d", i); line != want {
			t.Errorf("%s: line %d of the log is %q, want %q", pod, i, line, want)
			return
		}
	}
}

// exitMeanwhile has a container exit while berth is down. It must be restarted once, and its last
// state must have the real exit code.
func (b *bed) exitMeanwhile(t *testing.T, n *Namespace) {
	dir := t.TempDir()
	for _, class := range b.classes {
		n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: ends-%[1]s}
spec:
  runtimeClassName: %[1]s
  terminationGracePeriodSeconds: 1
  volumes: [{name: host, hostPath: {path: %[2]q}}]
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, 'echo running; while ! [ -e /host/end ]; do sleep 0.1; done; echo > /host/ended-%[1]s; [ -e /host/never ] || exit 42']
    volumeMounts: [{name: host, mountPath: /host}]
`, class.name, dir))
	}
	for _, class := range b.classes {
		n.WaitReady(t, "ends-"+class.name)
	}
	b.berth.Kill9(t)
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "end"), nil, 0o600))
	for _, class := range b.classes {
		testbed.Eventually(t, patience, func() error {
			_, err := os.Stat(filepath.Join(dir, "ended-"+class.name))
			return err
		})
	}
	testbed.Must(t, os.Remove(filepath.Join(dir, "end")))
	b.berth.Start(t)
	for _, class := range b.classes {
		status := n.WaitRestarts(t, "ends-"+class.name, "main", 1)
		if last := status.LastTerminationState.Terminated; last == nil || last.ExitCode != 42 {
			t.Errorf("%s: the last state of the container is %+v, want exit code 42", class.name, last)
		}
	}
}

// leaves deletes all pods and images, and fails if any resource of theirs is left on the host.
func (b *bed) leaves(t *testing.T, before testbed.Snapshot) {
	b.empty(t)
	testbed.Eventually(t, patience, func() error {
		sandboxes, err := b.berth.Client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		if left := len(sandboxes.GetItems()); left != 0 {
			return fmt.Errorf("%d sandboxes are left", left)
		}
		return nil
	})
	testbed.Eventually(t, patience, func() error {
		volumes, err := os.ReadDir(filepath.Join(b.node.root, "pods"))
		if err == nil && len(volumes) != 0 {
			err = fmt.Errorf("%d directories of pods are left in the kubelet's directory", len(volumes))
		}
		return err
	})
	images, err := b.berth.Client.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	testbed.Must(t, err)
	for _, image := range images.GetImages() {
		spec := &runtimeapi.ImageSpec{Image: image.GetId()}
		if _, err := b.berth.Client.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: spec}); err != nil {
			t.Errorf("remove image %s: %v", image.GetId(), err)
		}
	}
	// Idle supervisors wait a minute for the next pod; a restart of berth stops them.
	b.berth.Restart(t)
	before[testbed.Cgroups] = append(before[testbed.Cgroups], b.classCgroups(t)...)
	b.berth.NoLeaks(t, before)
}

// classCgroups returns the cgroups of the QoS classes. The kubelet creates some of them with the
// first pod and keeps them.
func (b *bed) classCgroups(t *testing.T) []string {
	t.Helper()
	var cgroups []string
	for _, hierarchy := range []string{"", "/*"} {
		found, err := filepath.Glob("/sys/fs/cgroup" + hierarchy + b.berth.Cgroup + "/kubepods/*")
		testbed.Must(t, err)
		for _, cgroup := range found {
			if name := filepath.Base(cgroup); name == "besteffort" || name == "burstable" {
				cgroups = append(cgroups, cgroup)
			}
		}
	}
	return cgroups
}
