package kubelet

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// pullSecret runs an image of a registry that asks for a password: not without
// it, and with it.
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
		t.Errorf("the event does not say why: %s", event)
	}
	n.Kubectl(t, "create", "secret", "docker-registry", "with",
		"--docker-server="+b.private.Host, "--docker-username="+username, "--docker-password="+password)
	n.Create(t, fmt.Sprintf(pod, "with", b.secret))
	status := n.WaitReady(t, "with").Status.ContainerStatuses[0]
	if status.Image != b.secret || !strings.Contains(status.ImageID, "sha256:") {
		t.Errorf("the image is %q, its id %q", status.Image, status.ImageID)
	}
	testbed.Same(t, n.Exec(t, "with", "id", "-u"), "1000\n", "the image's user is")
	if events := strings.Join(n.Events(t, "with"), "\n"); strings.Contains(events, password) {
		t.Errorf("the password is in the events:\n%s", events)
	}
	// The node has it now. That is no permission for others.
	n.Create(t, fmt.Sprintf(strings.Replace(pod, "Always", "IfNotPresent", 1), "later", b.secret))
	n.WaitPod(t, "later", func(pod *corev1.Pod) error {
		if s := pod.Status.ContainerStatuses; len(s) != 1 || s[0].State.Waiting == nil || !strings.Contains(s[0].State.Waiting.Reason, "Pull") {
			return fmt.Errorf("the containers are %+v", s)
		}
		return nil
	})
}

// debug looks into a running pod with a container that is added to it.
func (b *bed) debug(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		n.CreateOf(t, class.name, `
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: IMAGE, command: [sleep, "3600"]}]
`)
	}
	for _, class := range b.classes {
		before := n.WaitReady(t, class.name)
		arguments := []string{"debug", class.name, "--image=" + b.berth.Image, "--container=looker", "--quiet"}
		if !class.sandboxed {
			// gVisor joins no PID namespace of a container that runs already.
			arguments = append(arguments, "--target=main")
		}
		n.Kubectl(t, append(arguments, "--", "sh", "-c", "ps -o args; echo end of list; ip -o address show eth0; sleep 3600")...)
		pod := n.WaitPod(t, class.name, func(pod *corev1.Pod) error {
			if s := pod.Status.EphemeralContainerStatuses; len(s) != 1 || s[0].State.Running == nil {
				return fmt.Errorf("the ephemeral containers are %+v", s)
			}
			return nil
		})
		seen := n.session(t, "logs", "--follow", "--container=looker", class.name).until(t, "inet "+pod.Status.PodIP)
		if !class.sandboxed && !strings.Contains(seen, "sleep 3600") {
			t.Errorf("%s: the target's processes are not seen:\n%s", class.name, seen)
		}
		if pod.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID {
			t.Errorf("%s: the container became another", class.name)
		}
	}
}
