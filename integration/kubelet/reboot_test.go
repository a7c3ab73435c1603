package kubelet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// reboot cuts the node's power. Pods that shall always run must run again, each
// container once more and with its volumes, those that had ended must not, and the
// addresses of the old sandboxes must be free.
func (b *bed) reboot(t *testing.T) {
	n := b.NewNamespace(t, b.berth.Image)
	for _, class := range b.classes {
		n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: steady}}
spec:
  runtimeClassName: %[1]s
  restartPolicy: Always
  terminationGracePeriodSeconds: 1
  volumes: [{name: empty, emptyDir: {}}]
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, 'echo run >> /empty/runs; httpd -f -p 8080 -h /']
    readinessProbe: {httpGet: {path: /etc/passwd, port: 8080}, periodSeconds: 1}
    volumeMounts: [{name: empty, mountPath: /empty}]
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s-done, labels: {app: done}}
spec:
  runtimeClassName: %[1]s
  restartPolicy: Never
  containers: [{name: main, image: IMAGE, command: [sh, -c, 'echo done once']}]
`, class.name))
	}
	for _, class := range b.classes {
		n.WaitReady(t, class.name)
		n.WaitPhase(t, class.name+"-done", corev1.PodSucceeded)
	}
	before := n.identities(t, "app=steady")
	b.PowerCut(t)
	for _, class := range b.classes {
		status := n.WaitRestarts(t, class.name, "main", 1)
		n.WaitReady(t, class.name)
		if last := status.LastTerminationState.Terminated; last == nil || last.ExitCode == 0 {
			t.Errorf("%s: the container of before ended as %+v", class.name, last)
		}
		testbed.Same(t, n.Exec(t, class.name, "cat", "/empty/runs"), "run\nrun\n", "%s: it ran", class.name)
		done := n.Pod(t, class.name+"-done")
		if done.Status.Phase != corev1.PodSucceeded || done.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s: the pod that had ended is %+v", class.name, done.Status)
		}
		testbed.Same(t, n.Kubectl(t, "logs", class.name+"-done"), "done once\n", "%s: the log of the pod that had ended is", class.name)
	}
	after := n.identities(t, "app=steady")
	for _, identity := range after {
		if slices.Contains(before, identity) {
			t.Errorf("the container did not become another: %s", identity)
		}
	}
	testbed.Eventually(t, patience, func() error {
		leases, err := b.berth.CNI.Leases()
		if err != nil {
			return err
		}
		if len(leases) != len(b.classes) {
			return fmt.Errorf("addresses given out: %s; pods: %s", strings.Join(leases, ", "), strings.Join(after, "\n"))
		}
		return nil
	})
}
