package kubelet

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// Namespace is the namespace of one test.
type Namespace struct {
	// Name is the namespace's name.
	Name string

	cluster *Cluster
	image   string
}

// patience is how long a test waits for a change in a cluster. It is long because many tests share
// two cores.
const patience = 2 * time.Minute

// NewNamespace creates a namespace for a test. A cleanup deletes its content; if the test failed,
// the cleanup logs its pods and events first. In manifests, IMAGE stands for the image.
func (c *Cluster) NewNamespace(t testbed.T, image string) *Namespace {
	t.Helper()
	name := strings.ToLower(t.Name()[strings.LastIndexByte(t.Name(), '/')+1:])
	n := &Namespace{Name: strings.ReplaceAll(name, "_", "-"), cluster: c, image: image}
	if _, stderr, err := c.kubectl(t, nil, "create", "namespace", n.Name); err != nil {
		t.Fatalf("make namespace %s: %v: %s", n.Name, err, stderr)
	}
	t.Cleanup(func() {
		if t.Failed() {
			state, _, _ := n.TryKubectl(t, "", "get", "pods,events", "--output=wide")
			t.Logf("namespace %s:\n%s", n.Name, state)
		}
		n.Kubectl(t, "delete", "deployments,pods", "--all", "--timeout=2m")
		n.Kubectl(t, "delete", "namespace", n.Name, "--wait=false")
	})
	testbed.Eventually(t, patience, func() error {
		return c.get("/api/v1/namespaces/"+n.Name+"/serviceaccounts/default", nil)
	})
	return n
}

// Create creates the objects of a manifest.
func (n *Namespace) Create(t testbed.T, manifest string) {
	t.Helper()
	if _, stderr, err := n.TryKubectl(t, strings.ReplaceAll(manifest, "IMAGE", n.image), "create", "--filename=-"); err != nil {
		t.Fatalf("create: %v: %s\n%s", err, stderr, manifest)
	}
}

// CreatePod creates a pod with a name and a spec, which is the YAML below "spec:".
func (n *Namespace) CreatePod(t testbed.T, name, spec string) {
	t.Helper()
	n.Create(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: "+name+"}\nspec:"+spec)
}

// CreateOf creates a pod of a runtime class, with the class's name as its own name. CLASS in the
// spec stands for that name.
func (n *Namespace) CreateOf(t testbed.T, class, spec string) {
	t.Helper()
	n.CreatePod(t, class, strings.ReplaceAll("\n  runtimeClassName: CLASS"+spec, "CLASS", class))
}

// TryKubectl runs kubectl in the namespace.
func (n *Namespace) TryKubectl(t testbed.T, stdin string, arguments ...string) (stdout, stderr string, err error) {
	t.Helper()
	return n.cluster.kubectl(t, strings.NewReader(stdin), append([]string{"--namespace=" + n.Name}, arguments...)...)
}

// Kubectl runs kubectl in the namespace, which must succeed, and returns its stdout.
func (n *Namespace) Kubectl(t testbed.T, arguments ...string) string {
	t.Helper()
	stdout, stderr, err := n.TryKubectl(t, "", arguments...)
	if err != nil {
		t.Fatalf("kubectl %q: %v: %s", arguments, err, stderr)
	}
	return stdout
}

// Exec runs a command in a pod, which must succeed, and returns its stdout.
func (n *Namespace) Exec(t testbed.T, pod string, command ...string) string {
	t.Helper()
	return n.Kubectl(t, append([]string{"exec", "--quiet", pod, "--"}, command...)...)
}

// Pod reads a pod from the API server.
func (n *Namespace) Pod(t testbed.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := n.TryPod(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return pod
}

// TryPod is Pod, but returns an error.
func (n *Namespace) TryPod(name string) (*corev1.Pod, error) {
	pod := new(corev1.Pod)
	return pod, n.cluster.get("/api/v1/namespaces/"+n.Name+"/pods/"+name, pod)
}

// WaitPod waits until check returns nil for a pod, and returns the pod.
func (n *Namespace) WaitPod(t testbed.T, name string, check func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	var last *corev1.Pod
	testbed.Eventually(t, patience, func() error {
		pod, err := n.TryPod(name)
		if err != nil {
			return err
		}
		last = pod
		return check(pod)
	})
	return last
}

// WaitReady waits until a pod is ready.
func (n *Namespace) WaitReady(t testbed.T, name string) *corev1.Pod {
	t.Helper()
	return n.WaitPod(t, name, Ready)
}

// Ready returns an error unless a pod is ready.
func Ready(pod *corev1.Pod) error {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("pod %s is %s and not ready: %+v", pod.Name, pod.Status.Phase, pod.Status.ContainerStatuses)
}

// WaitPhase waits until a pod is in a phase.
func (n *Namespace) WaitPhase(t testbed.T, name string, phase corev1.PodPhase) *corev1.Pod {
	t.Helper()
	return n.WaitPod(t, name, func(pod *corev1.Pod) error {
		if pod.Status.Phase != phase {
			return fmt.Errorf("pod %s is %s, not %s: %+v", name, pod.Status.Phase, phase, pod.Status.ContainerStatuses)
		}
		return nil
	})
}

// Delete deletes a pod and waits until the API server no longer has it, which is after the kubelet
// has removed it.
func (n *Namespace) Delete(t testbed.T, name string) {
	t.Helper()
	n.Kubectl(t, "delete", "pod", name, "--timeout=2m")
	_, err := n.TryPod(name)
	var answer *statusError
	if !errors.As(err, &answer) || answer.code != http.StatusNotFound {
		t.Errorf("pod %s is still known after its deletion: %v", name, err)
	}
}

// Events returns the events of a pod, as "Reason: message".
func (n *Namespace) Events(t testbed.T, pod string) []string {
	t.Helper()
	var list corev1.EventList
	if err := n.cluster.get("/api/v1/namespaces/"+n.Name+"/events?fieldSelector=involvedObject.name="+pod, &list); err != nil {
		t.Fatalf("%v", err)
	}
	var events []string
	for _, event := range list.Items {
		events = append(events, event.Reason+": "+event.Message)
	}
	return events
}

// WaitEvent waits until a pod has an event with a reason and a text, and returns it.
func (n *Namespace) WaitEvent(t testbed.T, pod, reason, text string) string {
	t.Helper()
	var found string
	testbed.Eventually(t, patience, func() error {
		events := n.Events(t, pod)
		for _, event := range events {
			if strings.HasPrefix(event, reason+": ") && strings.Contains(event, text) {
				found = event
				return nil
			}
		}
		return fmt.Errorf("pod %s has no event %s with %q: %q", pod, reason, text, events)
	})
	return found
}

// WaitRestarts waits until a container of a pod runs again after a number of
// restarts, and returns its status.
func (n *Namespace) WaitRestarts(t testbed.T, name, container string, restarts int32) corev1.ContainerStatus {
	t.Helper()
	var last corev1.ContainerStatus
	n.WaitPod(t, name, func(pod *corev1.Pod) error {
		for _, status := range pod.Status.ContainerStatuses {
			if status.Name != container {
				continue
			}
			last = status
			if status.RestartCount != restarts || status.State.Running == nil {
				return fmt.Errorf("container %s of pod %s was restarted %d times and is %+v", container, name, status.RestartCount, status.State)
			}
			return nil
		}
		return fmt.Errorf("pod %s has no status of container %s", name, container)
	})
	return last
}
