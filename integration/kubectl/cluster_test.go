package kubectl

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/integration/testbed"
)

const labelPrefix = "feature.node.kubernetes.io/handler."

func ready(handlers ...string) map[string]string {
	all := map[string]string{}
	for _, h := range handlers {
		all[labelPrefix+h] = "ready"
	}
	return all
}

const podsPath = "/api/v1/namespaces/default/pods"

// furnish creates three nodes, two classes for their handlers, and one for a handler of no node.
func (b *bed) furnish(t *testing.T) {
	t.Helper()
	b.empty(t, classesPath, nodesPath)
	b.node(t, "a", true, ready("runc", "kata"), "", "runc", "kata")
	b.node(t, "b", true, ready("runc", "kata"), "", "runc", "gvisor")
	b.node(t, "c", false, nil, "", "runc")
	classes := manifest("kata", "kata", "scheduling: {nodeSelector: {"+labelPrefix+"kata: ready}}\noverhead: {podFixed: {memory: 10Mi}}\n") +
		manifest("runc", "runc", "scheduling: {nodeSelector: {"+labelPrefix+"runc: ready}}\n") + manifest("wasm", "wasmtime", "")
	b.kubectl(t, classes, "create", "-f", "-")
}

// manyNodes audits more nodes than the API server returns in one page.
func manyNodes(t *testing.T, b *bed) {
	b.empty(t, nodesPath)
	const amount = 1203
	for i := range amount {
		b.node(t, fmt.Sprintf("node-%d", i), true, nil, "", "runc")
	}
	r := berth(t, 0, b.admin, "", "audit")
	has(t, r.stdout, "handler runc: warning: no class uses it; it is on node-0, node-1, node-10, node-100, node-1000 and 1198 more; ")
	if strings.Count(r.stdout, "\n") != 1 {
		t.Errorf("audit prints more than one line: %s", r.stdout)
	}
}

// pod creates a pod that is bound to a node, or without a node one that is marked unschedulable.
func (b *bed) pod(t *testing.T, name, class, node string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{RuntimeClassName: &class, NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	b.create(t, podsPath, p)
	_, answer := b.Send(t, http.MethodGet, podsPath+"/"+name, nil)
	made := &corev1.Pod{}
	testbed.Must(t, json.Unmarshal(answer, made))
	if node == "" {
		made.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, LastTransitionTime: metav1.Now()}}
		body, err := json.Marshal(made)
		testbed.Must(t, err)
		if status, answer := b.Send(t, http.MethodPut, podsPath+"/"+name+"/status", body); status != http.StatusOK {
			t.Fatalf("mark pod %s as unschedulable: %d: %s", name, status, answer)
		}
	}
	t.Cleanup(func() { b.Send(t, http.MethodDelete, podsPath+"/"+name+"?gracePeriodSeconds=0", nil) })
	return made
}

func audit(t *testing.T, b *bed) {
	b.furnish(t)
	r := berth(t, 3, b.admin, "", "audit")
	has(t, r.stdout, `RuntimeClass wasm: error: none of the nodes that it selects has the handler "wasmtime"`, `RuntimeClass kata: warning: it selects nodes without the handler "kata", where its pods never start: b`,
		"handler gvisor: warning: no class uses it; it is on b", "handler runc: warning: its classes (runc) do not select these nodes that have it: c")
	has(t, r.stderr, "error: 1 error and 3 warnings in 3 RuntimeClasses and 3 nodes\n")

	// generate, which can also run without a cluster, uses the handlers that nodes report.
	r = berth(t, 0, b.admin, "", "generate", "--any-node")
	has(t, r.stdout, "handler: gvisor\n", "handler: kata\n", "handler: runc\n")

	// Pods that a scheduler and a kubelet could not start.
	b.pod(t, "misplaced", "kata", "b")
	refused := b.pod(t, "refused", "runc", "a")
	b.pod(t, "starting", "runc", "a")
	b.kubectl(t, "", "patch", "runtimeclass", "runc", "--type=merge", "-p", `{"scheduling":{"nodeSelector":{"`+labelPrefix+`runc":null,"no":"where"}}}`)
	b.pod(t, "homeless", "runc", "")
	b.kubectl(t, manifest("gone", "runc", ""), "create", "-f", "-")
	b.pod(t, "orphan", "gone", "a")
	b.kubectl(t, "", "delete", "runtimeclass", "gone")
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e"}, Reason: cluster.SandboxFailed, Message: `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "runc" is configured`,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "refused", UID: refused.UID}, Type: corev1.EventTypeWarning,
	}
	b.create(t, "/api/v1/namespaces/default/events", event)
	r = berth(t, 3, b.admin, "", "audit", "-o", "json")
	var report struct{ Findings []cluster.Finding }
	testbed.Must(t, json.Unmarshal([]byte(r.stdout), &report))
	concerned := map[string]string{}
	for _, f := range report.Findings {
		concerned[f.Rule] += strings.Join(f.Concerned, " ")
	}
	for rule, want := range map[string]string{
		cluster.RulePodWithoutHandler: "default/refuseddefault/misplaced", cluster.RulePodWithoutClass: "default/orphan",
	} {
		if concerned[rule] != want {
			t.Errorf("%s concerns %q, want %q", rule, concerned[rule], want)
		}
	}

	// Another namespace has no pending pods.
	if r = berth(t, 3, b.admin, "", "audit", "-n", "kube-system"); strings.Contains(r.stdout, "pod-without") {
		t.Errorf("audit of another namespace prints pods: %s", r.stdout)
	}
	b.kubectl(t, "", "delete", "runtimeclass", "runc", "wasm")
	b.kubectl(t, "", "delete", "pods", "--all", "--force")
	if r = berth(t, 0, b.admin, "", "audit"); !strings.Contains(r.stdout, "warning") {
		t.Errorf("audit without errors prints no warning: %+v", r)
	}
	has(t, berth(t, 3, b.admin, "", "audit", "--strict").stderr, "0 errors and ")
}

func fit(t *testing.T, b *bed) {
	b.furnish(t)
	p := file(t, "pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  hostUsers: false\n  containers: [{name: c, image: i}]\n")
	r := berth(t, 0, b.admin, "", "fit", "-f", p)
	has(t, r.stdout, "Pod p  - (current)  default", "Pod p  kata         kata      yes   -          memory=10Mi  a      the node does not have the handler (b, c)")
	// An overhead in a file is refused with the words of the API server.
	for spec, want := range map[string][]string{
		"  overhead: {memory: 1Mi}\n":                           {"- (current)", "Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		"  overhead: {memory: 1Mi}\n  runtimeClassName: kata\n": {"kata (current)", "Pod's Overhead doesn't match RuntimeClass's defined Overhead"},
	} {
		text := strings.Replace("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers: [{name: c, image: i}]\n", "  containers", spec+"  containers", 1)
		refused := `pods "p" is forbidden: pod rejected: ` + want[1]
		status, answer := b.Send(t, http.MethodPost, "/api/v1/namespaces/default/pods?dryRun=All", []byte(text))
		if status != http.StatusForbidden || !strings.Contains(string(answer), want[1]) {
			t.Errorf("the server answers %d, want forbidden: %s", status, answer)
		}
		lines := strings.Split(berth(t, 3, b.admin, text, "fit", "-f", "-").stdout, "\n")
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, want[0]) && strings.HasSuffix(l, refused) }) {
			t.Errorf("want a line with %s in\n%s", refused, strings.Join(lines, "\n"))
		}
	}

	b.pod(t, "live", "kata", "")
	b.kubectl(t, "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: front}\nspec:\n  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec:\n      nodeSelector: {kubernetes.io/hostname: nowhere}\n      containers: [{name: c, image: i}]\n", "create", "-f", "-")
	t.Cleanup(func() { b.Send(t, http.MethodDelete, "/apis/apps/v1/namespaces/default/deployments/front", nil) })
	// Other classes are checked with the pod as it was before admission added fields of its class.
	has(t, berth(t, 0, b.admin, "", "fit", "live").stdout, "Pod default/live  kata (current)", "Pod default/live  runc            runc      yes   -          -            a, b")
	has(t, berth(t, 3, b.admin, "", "fit", "deploy/front").stderr, "error: 1 pod of 1 cannot run as written\n")
	// The template of a workload was not admitted, so its overhead is one that a user wrote.
	b.kubectl(t, `{"spec": {"template": {"spec": {"nodeSelector": null, "overhead": {"memory": "1Mi"}}}}}`, "patch", "deploy/front", "--patch-file=/dev/stdin")
	has(t, berth(t, 3, b.admin, "", "fit", "deploy/front").stdout, "Pod Overhead set without corresponding RuntimeClass defined Overhead")
	b.kubectl(t, `{"spec": {"template": {"spec": {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}, "overhead": null}}}}`, "patch", "deploy/front", "--patch-file=/dev/stdin")
	r = berth(t, 3, b.admin, "", "fit", "deploy/front", "pod/live", "-o", "json")
	has(t, r.stdout, `"pod": "Deployment default/front"`, `"pod": "Pod default/live"`, "kubernetes.io/hostname=nowhere")
	has(t, berth(t, 1, b.admin, "", "fit", "pod/nobody").stderr, `pods "nobody" not found`)
	has(t, berth(t, 1, b.admin, "", "fit", "nonsense/nobody").stderr, `the server doesn't have a resource type "nonsense"`)
	has(t, berth(t, 2, b.admin, "", "fit", "runtimeclass/kata").stderr, "RuntimeClass kata has no pods")
	has(t, berth(t, 2, b.admin, "", "fit").stderr, "no pods given")
	has(t, berth(t, 2, b.admin, "a: [\n", "fit", "-f", "-").stderr, "is not YAML")
	// Only the classes of the cluster count, not those in the file.
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n"
	r = berth(t, 0, b.admin, pod+manifest("x", "runc", ""), "fit", "-f", "-")
	has(t, r.stderr, "document 2: RuntimeClass x is skipped")
	if strings.Contains(r.stdout, " x ") {
		t.Errorf("fit uses the class of the file: %s", r.stdout)
	}
	has(t, berth(t, 2, b.admin, manifest("x", "runc", ""), "fit", "-f", "-").stderr, "no pod found in -")
}

// nobodyAnswers checks the errors of commands without a server, and with wrong arguments.
func nobodyAnswers(t *testing.T, _ *bed) {
	nowhere := unreachable(t)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"audit", 1, "cannot reach the API server https://127.0.0.1:1: "},
		{"fit -f -", 1, "cannot reach the API server https://127.0.0.1:1: "},
		{"fit pod/x", 1, "cannot reach the API server https://127.0.0.1:1: "},
		{"generate", 1, "cannot reach the API server https://127.0.0.1:1: "},
		{"audit -o lines", 2, "unknown output format -o lines"},
		{"audit everything", 2, `"kubectl berth audit" takes no arguments, got "everything"`},
		{"audit --context other", 2, `"other"`},
	} {
		r := berth(t, c.code, nowhere, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n", strings.Fields(c.args)...)
		if r.stdout != "" || !strings.Contains(r.stderr, c.says) {
			t.Errorf("%s: got %+v, want the error %q", c.args, r, c.says)
		}
		// One line, because a server that does not answer is not called again.
		if c.code == 1 && strings.Count(r.stderr, "\n") > 1 {
			t.Errorf("%s prints more than one error:\n%s", c.args, r.stderr)
		}
	}
	has(t, berth(t, 0, nowhere, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n", "fit", "-f", "-", "--handlers", "runc").stdout, "runc     yes")
}

// unreachable is a kubeconfig for an address without a server.
func unreachable(t *testing.T) string {
	t.Helper()
	return file(t, "nowhere.yaml", "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: x, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: x, context: {cluster: x, user: x}}]\nusers: [{name: x, user: {token: x}}]\n")
}

// rights checks that errors name the missing right, in the words of the API server.
func rights(t *testing.T, b *bed) {
	b.furnish(t)
	may := func(r result, resource string) {
		t.Helper()
		has(t, r.stderr, fmt.Sprintf("cannot list resource %q", resource))
	}
	may(berth(t, 1, b.guest, "", "audit"), "nodes")
	has(t, berth(t, 1, b.guest, "", "fit", "pod/x").stderr, `"guest" cannot get resource "pods"`)
	b.allow(t, map[string]any{"apiGroups": []string{"", "node.k8s.io"}, "resources": []string{"runtimeclasses", "nodes"}, "verbs": []string{"list"}})
	testbed.Eventually(t, time.Minute, func() error {
		if r := run(t, "", []string{"KUBECONFIG=" + b.guest}, "audit"); !strings.Contains(r.stderr, `cannot list resource "pods"`) {
			return fmt.Errorf("audit with rights on nodes and classes only: %+v", r)
		}
		return nil
	})
	// An administrator impersonates another user.
	may(berth(t, 1, b.admin, "", "audit", "--as", "somebody"), "nodes")
}
