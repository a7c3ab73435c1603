package kubelet

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// pullSecret runs an image of a registry that requires a password. A pod without the secret must
// not run, even when the node already has the image; a pod with the secret must.
func (b *bed) pullSecret(t *testing.T, n *Namespace) {
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 1
  imagePullSecrets: [{name: %[1]s}]
  containers: [{name: main, image: %[2]q, imagePullPolicy: Always, command: [sleep, "3600"]}]
`
	n.Create(t, fmt.Sprintf(pod, "without", b.secret))
	event := n.WaitEvent(t, "without", "Failed", b.secret)
	if !strings.Contains(event, "401") && !strings.Contains(strings.ToLower(event), "authoriz") {
		t.Errorf("the event does not have the reason, a missing authorization: %s", event)
	}
	n.Kubectl(t, "create", "secret", "docker-registry", "with",
		"--docker-server="+b.private.Host, "--docker-username="+username, "--docker-password="+password)
	n.Create(t, fmt.Sprintf(pod, "with", b.secret))
	status := n.WaitReady(t, "with").Status.ContainerStatuses[0]
	if status.Image != b.secret || !strings.Contains(status.ImageID, "sha256:") {
		t.Errorf("the image is %q with ID %q, want %q with a digest", status.Image, status.ImageID, b.secret)
	}
	testbed.Same(t, n.Exec(t, "with", "id", "-u"), "1000\n", "the uid in the container is")
	if events := strings.Join(n.Events(t, "with"), "\n"); strings.Contains(events, password) {
		t.Errorf("the password is in the events:\n%s", events)
	}
	// The node has the image now, but a pod without the secret may still not use it.
	n.Create(t, fmt.Sprintf(strings.Replace(pod, "Always", "IfNotPresent", 1), "later", b.secret))
	n.WaitPod(t, "later", func(pod *corev1.Pod) error {
		if s := pod.Status.ContainerStatuses; len(s) != 1 || s[0].State.Waiting == nil || !strings.Contains(s[0].State.Waiting.Reason, "Pull") {
			return fmt.Errorf("the containers are %+v", s)
		}
		return nil
	})
}
