package kubelet

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// liveness runs a pod per kind of liveness probe, and has the probe fail. The container must be
// restarted exactly once.
func (b *bed) liveness(t *testing.T, n *Namespace) {
	probes := map[string]string{
		"exec": "exec: {command: [test, -e, /tmp/alive]}, timeoutSeconds: 10",
		"slow": "exec: {command: [sh, -c, 'if [ -e /tmp/alive ]; then exit 0; fi; sleep 60']}, timeoutSeconds: 10",
		"http": "httpGet: {path: /alive, port: 8080}, timeoutSeconds: 10",
		"tcp":  "tcpSocket: {port: 8080}, timeoutSeconds: 10",
	}
	for kind, probe := range probes {
		n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, 'touch /tmp/alive; httpd -p 8080 -h /tmp; sleep 3600']
    startupProbe: {httpGet: {path: /alive, port: 8080}, periodSeconds: 1, failureThreshold: 60}
    livenessProbe: {%s, periodSeconds: 1, failureThreshold: 2}
`, kind, probe))
	}
	first := map[string]string{}
	for kind := range probes {
		first[kind] = containerID(n.WaitReady(t, kind).Status.ContainerStatuses[0])
		n.Exec(t, kind, "sh", "-c", "rm /tmp/alive; killall httpd")
	}
	for kind := range probes {
		event := n.WaitEvent(t, kind, "Unhealthy", "Liveness probe ")
		if kind == "slow" {
			n.WaitEvent(t, kind, "Unhealthy", "timed out")
		}
		n.WaitPod(t, kind, func(pod *corev1.Pod) error {
			status := pod.Status.ContainerStatuses[0]
			// Terminated may be nil: the kubelet can remove the old container while it creates
			// the new one.
			last := status.LastTerminationState.Terminated
			if status.RestartCount != 1 || containerID(status) == first[kind] || last != nil && last.ExitCode != 137 {
				return fmt.Errorf("after %q: pod %s had container %s, now %+v", event, kind, first[kind], status)
			}
			return Ready(pod)
		})
	}
}
