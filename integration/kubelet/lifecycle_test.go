package kubelet

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// backOff runs a pod whose two containers exit with an error each time.
func (b *bed) backOff(t *testing.T, n *Namespace) {
	n.CreatePod(t, "failing", `
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, 'echo run; echo its last words > /dev/termination-log; exit 3']
  - name: talkative
    image: IMAGE
    terminationMessagePolicy: FallbackToLogsOnError
    command: [sh, -c, 'echo what the log says; exit 4']
`)
	pod := n.WaitPod(t, "failing", func(pod *corev1.Pod) error {
		if len(pod.Status.ContainerStatuses) != 2 {
			return fmt.Errorf("%d containers have a status", len(pod.Status.ContainerStatuses))
		}
		for _, status := range pod.Status.ContainerStatuses {
			if waiting := status.State.Waiting; status.RestartCount < 2 || waiting == nil || waiting.Reason != "CrashLoopBackOff" {
				return fmt.Errorf("container %s was restarted %d times and is %+v", status.Name, status.RestartCount, status.State)
			}
		}
		return nil
	})
	for i, want := range []struct {
		code    int32
		message string
	}{{3, "its last words\n"}, {4, "what the log says\n"}} {
		last := pod.Status.ContainerStatuses[i].LastTerminationState.Terminated
		if last == nil || last.ExitCode != want.code || last.Message != want.message || last.Reason != "Error" {
			t.Errorf("the last termination is %+v, want %+v", last, want)
		}
	}
	n.WaitEvent(t, "failing", "BackOff", "restarting failed container")
	// The kubelet may just have removed the previous container for a newer one.
	testbed.Eventually(t, patience, func() error {
		if previous, _, err := n.TryKubectl(t, "", "logs", "--previous", "--container=main", "failing"); err != nil || previous != "run\n" {
			return fmt.Errorf("the previous log is %q: %v", previous, err)
		}
		return nil
	})
}

// initAndSidecars checks that init containers and a sidecar start in order before the main
// container, and that the sidecar is stopped after it.
func (b *bed) initAndSidecars(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		n.CreateOf(t, class.name, `
  restartPolicy: Never
  terminationGracePeriodSeconds: 20
  volumes: [{name: shared, emptyDir: {}}]
  initContainers:
  - {name: first, image: IMAGE, command: [sh, -c, 'echo first >> /shared/order'], volumeMounts: [{name: shared, mountPath: /shared}]}
  - name: sidecar
    image: IMAGE
    restartPolicy: Always
    command: [sh, -c, 'trap "echo sidecar ends; exit 0" TERM; echo sidecar >> /shared/order; touch /shared/ready; while :; do sleep 0.1; done']
    startupProbe: {exec: {command: [test, -e, /shared/ready]}, periodSeconds: 1, timeoutSeconds: 20, failureThreshold: 60}
    volumeMounts: [{name: shared, mountPath: /shared}]
  - {name: last, image: IMAGE, command: [sh, -c, 'echo last >> /shared/order'], volumeMounts: [{name: shared, mountPath: /shared}]}
  containers:
  - {name: main, image: IMAGE, command: [sh, -c, 'cat /shared/order'], volumeMounts: [{name: shared, mountPath: /shared}]}
`)
	}
	for _, class := range b.classes {
		pod := n.WaitPhase(t, class.name, corev1.PodSucceeded)
		testbed.Same(t, n.Kubectl(t, "logs", "--container=main", class.name), "first\nsidecar\nlast\n", "%s: the order of the starts is", class.name)
		testbed.Same(t, n.Kubectl(t, "logs", "--container=sidecar", class.name), "sidecar ends\n", "%s: the log of the sidecar is", class.name)
		for _, status := range pod.Status.InitContainerStatuses {
			if end := status.State.Terminated; end == nil || end.ExitCode != 0 {
				t.Errorf("%s: init container %s has not exited with 0: %+v", class.name, status.Name, status.State)
			}
		}
	}
}
