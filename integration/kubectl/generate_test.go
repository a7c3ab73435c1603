package kubectl

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/integration/kubelet"
)

func manifest(name, handler, more string) string {
	return fmt.Sprintf("---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: %s}\nhandler: %s\n%s", name, handler, more)
}

// node creates a node that reports handlers.
func (b *bed) node(t *testing.T, name string, ready bool, labels map[string]string, handlers ...string) {
	t.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: "Kubelet", Message: "set by the test"}}
	yes, no := true, false
	for _, h := range handlers {
		userns := &yes
		if h == "gvisor" {
			userns = &no
		}
		n.Status.RuntimeHandlers = append(n.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{
			Name: h, Features: &corev1.NodeRuntimeHandlerFeatures{UserNamespaces: userns, RecursiveReadOnlyMounts: &yes},
		})
	}
	b.create(t, nodesPath, n)
}

// generate applies the classes that "generate" prints for the handlers that nodes report. A later
// call without measurements keeps the overhead of the class in the cluster.
func generate(t *testing.T, b *bed) {
	b.empty(t, classesPath, nodesPath)
	has(t, berth(t, 1, b.admin, "", "generate").stderr, "no node of the cluster reports handlers")
	apply := func(args ...string) result {
		t.Helper()
		r := berth(t, 0, b.admin, "", append([]string{"generate"}, args...)...)
		b.kubectl(t, r.stdout, "apply", "--server-side", "-f", "-")
		return r
	}
	b.node(t, "a", true, map[string]string{"feature.node.kubernetes.io/handler.runc.present": "true"}, "", "runc")
	b.kubectl(t, "", "patch", "node", "a", "--subresource=status", `--patch={"status":{"capacity":{"feature.node.kubernetes.io/handler.runc.pods":"40"}}}`)
	b.node(t, "b", true, nil, "", "runc", "gvisor")
	b.node(t, "c", false, nil, "kata")
	measured := file(t, "overhead.yaml", "handlers:\n- name: gvisor\n  overhead: {pods: 10, memory: {p50: 20Mi, p95: 30Mi, max: 31Mi}, cpu: {p50: 1m, p95: 2m, max: 2m}}\n")
	r := apply("--measurements", measured, "--toleration", "sandboxes:NoSchedule")
	has(t, r.stderr, "note: handler kata is not-ready; no class is generated\n",
		"note: class gvisor selects nodes by feature.node.kubernetes.io/handler.gvisor.present=true, which no node has yet",
		"note: pods of class gvisor request a resource that no node has yet")
	if strings.Contains(r.stderr, "class runc selects") || strings.Contains(r.stderr, "pods of class runc") || b.class(t, "kata") != nil {
		t.Errorf("there are notes on runc, or a class of kata: %s", r.stderr)
	}
	g := b.class(t, "gvisor")
	if g.Handler != "gvisor" || g.Overhead.PodFixed.Memory().String() != "30Mi" || !runtimeclass.Counted(g) || g.Scheduling.NodeSelector["feature.node.kubernetes.io/handler.gvisor.present"] != "true" || len(g.Scheduling.Tolerations) != 1 {
		t.Errorf("the class of gvisor is %+v", g)
	}
	apply("kata", "--any-node", "--no-capacity")
	if c := b.class(t, "kata"); c == nil || c.Scheduling != nil || c.Overhead != nil {
		t.Errorf("with --any-node and --no-capacity the class of kata is %+v", c)
	}
	has(t, apply("gvisor", "--no-capacity").stdout, "# overhead: that of the class in the cluster; --measurements would change it\n")
	if c := b.class(t, "gvisor"); runtimeclass.Counted(c) || c.Overhead.PodFixed.Memory().String() != "30Mi" || c.Scheduling.NodeSelector["feature.node.kubernetes.io/handler.gvisor"] != "ready" {
		t.Errorf("with --no-capacity the class of gvisor is %+v", c)
	}
	apply("gvisor")
	if c := b.class(t, "gvisor"); !runtimeclass.Counted(c) || len(c.Scheduling.NodeSelector) != 1 || c.Scheduling.NodeSelector["feature.node.kubernetes.io/handler.gvisor.present"] != "true" {
		t.Errorf("without --no-capacity the class of gvisor is %+v", c)
	}
	has(t, berth(t, 2, b.admin, "", "generate", "gvsior").stderr, `did you mean "gvisor"?`)
	has(t, berth(t, 0, b.admin, "", "__complete", "generate", "").stdout, "gvisor\nkata\nrunc\n")
	// The examples can be applied.
	has(t, b.kubectl(t, "", "apply", "--server-side", "-f", "../../contrib/kubernetes/runtimeclasses.yaml", "--dry-run=server"), "runtimeclass.node.k8s.io/kata serverside-applied (server dry run)\n")
}

// allow gives the guest rights until the test ends.
func (b *bed) allow(t *testing.T, rules ...map[string]any) {
	t.Helper()
	const group = "/apis/rbac.authorization.k8s.io/v1/"
	b.create(t, group+"clusterroles", map[string]any{"metadata": map[string]any{"name": "for-guest"}, "rules": rules})
	b.create(t, group+"clusterrolebindings", map[string]any{
		"metadata": map[string]any{"name": "for-guest"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "for-guest"},
		"subjects": []map[string]any{{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": kubelet.Guest}},
	})
	t.Cleanup(func() {
		for _, kind := range []string{"clusterrolebindings", "clusterroles"} {
			if status, answer := b.Send(t, http.MethodDelete, group+kind+"/for-guest", nil); status != http.StatusOK {
				t.Errorf("remove the rights of the guest: %d: %s", status, answer)
			}
		}
	})
}
