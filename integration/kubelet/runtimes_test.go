package kubelet

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// deployments runs a Deployment per class, and checks which runtime runs its pods.
func (b *bed) deployments(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		n.Create(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: 2
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      runtimeClassName: %[1]s
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: IMAGE, command: [sleep, "3600"]}
`, class.name))
	}
	for _, class := range b.classes {
		n.Kubectl(t, "rollout", "status", "deployment/"+class.name, "--timeout=2m")
		for _, pod := range n.podsOf(t, "app="+class.name) {
			class.ran(t, running(n, &pod))
		}
	}
}

// podsOf returns the pods with a label.
func (n *Namespace) podsOf(t testbed.T, label string) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := n.cluster.get("/api/v1/namespaces/"+n.Name+"/pods?labelSelector="+label, &list); err != nil {
		t.Fatalf("%v", err)
	}
	if len(list.Items) == 0 {
		t.Fatalf("no pod has label %s", label)
	}
	return list.Items
}

// runtimeClasses checks the overhead and node selector that a class adds to a pod, and the events
// of pods whose class has no matching node or no existing handler.
func (b *bed) runtimeClasses(t *testing.T, n *Namespace) {
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  runtimeClassName: %[1]s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: IMAGE, command: [sleep, "3600"]}]
`
	for _, class := range []string{"gvisor", "elsewhere", "unknown"} {
		n.Create(t, fmt.Sprintf(pod, class))
	}
	spec := n.WaitReady(t, "gvisor").Spec
	if spec.Overhead.Memory().String() != "96Mi" || spec.Overhead.Cpu().String() != "100m" || spec.NodeSelector["berth.test/sandboxes"] != "yes" {
		t.Errorf("the class gave the pod overhead %v and selector %v", spec.Overhead, spec.NodeSelector)
	}
	n.WaitEvent(t, "elsewhere", "FailedScheduling", "selector")
	event := n.WaitEvent(t, "unknown", "FailedCreatePodSandBox", "kata-nowhere")
	if !strings.Contains(event, "crun, on-erofs, on-stargz, runc (default), runsc") || strings.Contains(event, "\n") {
		t.Errorf("the event does not list the handlers in one line: %q", event)
	}
	testbed.Same(t, n.Pod(t, "unknown").Status.Phase, corev1.PodPending, "the pod of an unknown handler is")
}

// handlers compares the handlers and features in the node's status and labels with berth's.
func (b *bed) handlers(t *testing.T, _ *Namespace) {
	status, err := b.berth.Client.Status(t.Context(), &runtimeapi.StatusRequest{})
	testbed.Must(t, err)
	want := map[string]corev1.NodeRuntimeHandlerFeatures{}
	for _, handler := range status.GetRuntimeHandlers() {
		mounts, users := handler.GetFeatures().GetRecursiveReadOnlyMounts(), handler.GetFeatures().GetUserNamespaces()
		want[handler.GetName()] = corev1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &mounts, UserNamespaces: &users}
	}
	for _, name := range []string{"", "runc", "crun", "runsc"} {
		if _, there := want[name]; !there {
			t.Errorf("berth's status has no handler %q", name)
		}
	}
	testbed.Eventually(t, patience, func() error {
		node, err := b.Node(NodeName)
		if err != nil {
			return err
		}
		for _, name := range []string{"runc", "crun", "runsc"} {
			// newBedOf gave these labels to the kubelet, which is allowed to set them.
			if node.Labels[nodelabel.Handler(name)] != nodelabel.Ready {
				return fmt.Errorf("the node has no label of handler %s: %v", name, node.Labels)
			}
		}
		got := map[string]corev1.NodeRuntimeHandlerFeatures{}
		for _, handler := range node.Status.RuntimeHandlers {
			got[handler.Name] = *handler.Features
		}
		if !reflect.DeepEqual(got, want) || len(node.Status.RuntimeHandlers) != len(want) {
			return fmt.Errorf("the node's handlers are %+v, berth's %+v", node.Status.RuntimeHandlers, status.GetRuntimeHandlers())
		}
		if policy := node.Status.Features; policy == nil || *policy.SupplementalGroupsPolicy != status.GetFeatures().GetSupplementalGroupsPolicy() {
			return fmt.Errorf("the node's features are %+v, berth's %+v", policy, status.GetFeatures())
		}
		if version := node.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(version, "berth://") {
			return fmt.Errorf("the node's runtime is %s", version)
		}
		return nil
	})
}

// snapshotters runs one image with each snapshotter, whichever of them the image was pulled for.
func (b *bed) snapshotters(t *testing.T, n *Namespace) {
	image := b.berth.Registry.Push(t, "kubelet/estargz:1", testbed.EStargz(t, testbed.Busybox(t, testbed.WithLayer(
		testbed.File{Path: "model", Mode: 0o644, Body: []byte("weights")},
	))))
	for _, class := range []string{"on-stargz", "on-erofs", "runc"} {
		n.Create(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  runtimeClassName: %[1]s
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %[2]q, command: [sleep, "3600"]}]
`, class, image))
	}
	for _, class := range []string{"on-stargz", "on-erofs", "runc"} {
		n.WaitReady(t, class)
		testbed.Same(t, strings.TrimSpace(n.Exec(t, class, "sh", "-c", "cat /model && echo ' mine' > /new && cat /new")), "weights mine", "%s: the files are", class)
	}
}
