package kubelet

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// reboot cuts the node's power. Containers with restartPolicy Always must have started once more,
// with their volumes. Pods that had completed must not run again, and the addresses of the old
// sandboxes must be free.
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
	before := map[string]string{}
	for _, class := range b.classes {
		before[class.name] = n.WaitReady(t, class.name).Status.ContainerStatuses[0].ContainerID
		n.WaitPhase(t, class.name+"-done", corev1.PodSucceeded)
	}
	b.PowerCut(t)
	for _, class := range b.classes {
		status := n.WaitRestarts(t, class.name, "main", 1)
		if after := n.WaitReady(t, class.name).Status.ContainerStatuses[0].ContainerID; after == before[class.name] {
			t.Errorf("%s: the container was not replaced: %s", class.name, after)
		}
		if last := status.LastTerminationState.Terminated; last == nil || last.ExitCode == 0 {
			t.Errorf("%s: last state of the container from before the reboot: %+v, want a failure", class.name, last)
		}
		testbed.Same(t, n.Exec(t, class.name, "cat", "/empty/runs"), "run\nrun\n", "%s: the volume with a line per start has", class.name)
		done := n.Pod(t, class.name+"-done")
		if done.Status.Phase != corev1.PodSucceeded || done.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("%s: the completed pod is %+v, want it Succeeded without a restart", class.name, done.Status)
		}
		testbed.Same(t, n.Kubectl(t, "logs", class.name+"-done"), "done once\n", "%s: the log of the completed pod is", class.name)
	}
	testbed.Eventually(t, patience, func() error {
		leases, err := b.berth.CNI.Leases()
		if err != nil {
			return err
		}
		if len(leases) != len(b.classes) {
			return fmt.Errorf("leased addresses: %s; want one per running pod: %s", strings.Join(leases, ", "), strings.Join(n.identities(t, "app=steady"), "\n"))
		}
		return nil
	})
}
