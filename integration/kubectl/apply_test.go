package kubectl

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/runtimeclass"
)

func manifest(name, handler, more string) string {
	return fmt.Sprintf("---\napiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: %s}\nhandler: %s\n%s", name, handler, more)
}

const overhead = "overhead: {podFixed: {memory: %s}}\n"

func apply(t *testing.T, b *bed) {
	b.empty(t, classesPath)
	both := manifest("one", "runc", "") + manifest("two", "kata", fmt.Sprintf(overhead, "64Mi"))

	r := berth(t, 0, b.admin, "", "apply", "-f", file(t, "classes.yaml", both), "--dry-run=server")
	has(t, r.stdout, "runtimeclass.node.k8s.io/one created (server dry run)\nruntimeclass.node.k8s.io/two created (server dry run)\n")
	if b.class(t, "one") != nil {
		t.Error("a dry run has made a class")
	}
	r = berth(t, 1, b.admin, both, "apply", "-f", "-", "--diff")
	has(t, r.stdout, "+handler: runc\n", "+    memory: 64Mi\n")
	if b.class(t, "one") != nil {
		t.Error("a diff has made a class")
	}

	r = berth(t, 0, b.admin, both, "apply", "-f", "-")
	if want := "runtimeclass.node.k8s.io/one created\nruntimeclass.node.k8s.io/two created\n"; r.stdout != want || r.stderr != "" {
		t.Errorf("got %+v", r)
	}
	two := b.class(t, "two")
	if two == nil || two.Handler != "kata" || two.ManagedFields[0].Manager != "kubectl-berth" || two.ManagedFields[0].Operation != metav1.ManagedFieldsOperationApply {
		t.Fatalf("got %+v", two)
	}

	r = berth(t, 0, b.admin, both, "apply", "-f", "-", "--diff")
	if r.stdout != "" {
		t.Errorf("got %s", r.stdout)
	}
	r = berth(t, 0, b.admin, both, "apply", "-f", "-")
	has(t, r.stdout, "one unchanged\n", "two unchanged\n")
	if now := b.class(t, "two"); now.ResourceVersion != two.ResourceVersion {
		t.Error("what is the same was written")
	}

	changed := manifest("one", "runc", "") + manifest("two", "kata", fmt.Sprintf(overhead, "96Mi"))
	r = berth(t, 1, b.admin, changed, "apply", "-f", "-", "--diff")
	has(t, r.stdout, "-    memory: 64Mi\n+    memory: 96Mi\n")
	if strings.Contains(r.stdout, "managedFields") || strings.Contains(r.stdout, "resourceVersion") || strings.Contains(r.stdout, "runc") {
		t.Errorf("got %s", r.stdout)
	}
	r = run(t, changed, []string{"KUBECONFIG=" + b.admin, "KUBECTL_EXTERNAL_DIFF=diff -rq"}, "apply", "-f", "-", "--diff")
	if r.code != 1 || !strings.Contains(r.stdout, "MERGED/node.k8s.io.v1.RuntimeClass..two differ") {
		t.Errorf("got %+v", r)
	}
	r = run(t, changed, []string{"KUBECONFIG=" + b.admin, "KUBECTL_EXTERNAL_DIFF=/nowhere/diff"}, "apply", "-f", "-", "--diff")
	if r.code != 2 || !strings.Contains(r.stderr, "/nowhere/diff") {
		t.Errorf("got %+v", r)
	}
	r = berth(t, 0, b.admin, changed, "apply", "-f", "-")
	has(t, r.stdout, "one unchanged\n", "two configured\n")

	// The examples are fit to be applied.
	has(t, berth(t, 0, b.admin, "", "apply", "-f", "../../contrib/kubernetes/runtimeclasses.yaml", "--dry-run=server").stdout, "runtimeclass.node.k8s.io/kata created (server dry run)\n")

	// What was read from a cluster can be applied again.
	whole := b.kubectl(t, "", "get", "runtimeclass", "two", "-o", "yaml", "--show-managed-fields")
	has(t, berth(t, 0, b.admin, whole, "apply", "-f", "-", "--force-conflicts", "-o", "yaml").stdout, "kind: RuntimeClassList\n", "handler: kata\n", "memory: 96Mi\n")
	// Not if it was changed since.
	b.kubectl(t, "", "label", "runtimeclass", "two", "since=then")
	has(t, berth(t, 1, b.admin, whole, "apply", "-f", "-").stderr, "nothing was applied", `"two" was changed by another client meanwhile; remove metadata.resourceVersion from the file`)
	has(t, berth(t, 0, b.admin, both, "apply", "-f", "-", "-o", "name").stdout, "runtimeclass.node.k8s.io/one\nruntimeclass.node.k8s.io/two\n")
}

// node makes one that reports handlers.
func (b *bed) node(t *testing.T, name string, ready bool, labels map[string]string, handlers ...string) {
	t.Helper()
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status, Reason: "Kubelet", Message: "the test says so"}}
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

func applyFromNodes(t *testing.T, b *bed) {
	b.empty(t, classesPath, nodesPath)
	r := berth(t, 1, b.admin, "", "apply", "--from-nodes")
	has(t, r.stderr, "no node of the cluster reports handlers")

	b.node(t, "a", true, map[string]string{"feature.node.kubernetes.io/handler.runc.present": "true"}, "", "runc")
	b.kubectl(t, "", "patch", "node", "a", "--subresource=status", `--patch={"status":{"capacity":{"feature.node.kubernetes.io/handler.runc.pods":"40"}}}`)
	b.node(t, "b", true, nil, "", "runc", "gvisor")
	b.node(t, "c", false, nil, "kata")
	measured := file(t, "overhead.yaml", "handlers:\n- name: gvisor\n  overhead: {pods: 10, memory: {p50: 20Mi, p95: 30Mi, max: 31Mi}, cpu: {p50: 1m, p95: 2m, max: 2m}}\n")
	r = berth(t, 0, b.admin, "", "apply", "--from-nodes", "--measurements", measured, "--toleration", "sandboxes:NoSchedule")
	has(t, r.stdout, "runtimeclass.node.k8s.io/gvisor created\nruntimeclass.node.k8s.io/runc created\n")
	has(t, r.stderr, "note: handler kata is not-ready; no class is generated\n", "note: class gvisor: overhead: measured, p95 of 10 pods\n",
		"note: class gvisor selects nodes by feature.node.kubernetes.io/handler.gvisor.present=true, which no node has yet",
		"note: pods of class gvisor are counted, and no node has their resource yet")
	if strings.Contains(r.stderr, "class runc selects") || strings.Contains(r.stderr, "pods of class runc") || b.class(t, "kata") != nil {
		t.Errorf("got %s", r.stderr)
	}
	g := b.class(t, "gvisor")
	if g.Handler != "gvisor" || g.Overhead.PodFixed.Memory().String() != "30Mi" || !runtimeclass.Counted(g) || g.Scheduling.NodeSelector["feature.node.kubernetes.io/handler.gvisor.present"] != "true" || len(g.Scheduling.Tolerations) != 1 {
		t.Errorf("got %+v", g)
	}
	berth(t, 0, b.admin, "", "apply", "--from-nodes", "kata", "--any-node", "--no-capacity")
	if c := b.class(t, "kata"); c == nil || c.Scheduling != nil || c.Overhead != nil {
		t.Errorf("got %+v", c)
	}
	// A class of before gets what it lacks.
	berth(t, 0, b.admin, "", "apply", "--from-nodes", "gvisor", "--no-capacity")
	if c := b.class(t, "gvisor"); runtimeclass.Counted(c) || c.Scheduling.NodeSelector["feature.node.kubernetes.io/handler.gvisor"] != "ready" {
		t.Errorf("got %+v", c)
	}
	berth(t, 0, b.admin, "", "apply", "--from-nodes", "gvisor")
	if c := b.class(t, "gvisor"); !runtimeclass.Counted(c) || len(c.Scheduling.NodeSelector) != 1 || c.Scheduling.NodeSelector["feature.node.kubernetes.io/handler.gvisor.present"] != "true" {
		t.Errorf("got %+v", c)
	}
	has(t, berth(t, 2, b.admin, "", "apply", "--from-nodes", "gvsior").stderr, `did you mean "gvisor"?`)
	has(t, berth(t, 0, b.admin, "", "__complete", "apply", "--from-nodes", "").stdout, "gvisor\nkata\nrunc\n")
}

// What the server refuses keeps all from being applied.
func applyAllOrNone(t *testing.T, b *bed) {
	b.empty(t, classesPath)
	berth(t, 0, b.admin, manifest("old", "runc", "")+manifest("shared", "runc", fmt.Sprintf(overhead, "1Mi")), "apply", "-f", "-")
	none := func(r result, parts ...string) {
		t.Helper()
		has(t, r.stderr, parts...)
		has(t, r.stderr, "nothing was applied")
		if r.stdout != "" || b.class(t, "fresh") != nil {
			t.Errorf("something was applied: %s", r.stdout)
		}
	}
	fresh := manifest("fresh", "runc", "")
	none(berth(t, 1, b.admin, fresh+manifest("old", "crun", ""), "apply", "-f", "-"), "field is immutable", `in the cluster it has handler "runc"`)
	none(berth(t, 1, b.admin, fresh+manifest("bad", "Kata", ""), "apply", "-f", "-"), "bad", "must consist of lower case")
	none(berth(t, 1, b.admin, fresh+fresh, "apply", "-f", "-"), "is also at standard input:2")
	none(berth(t, 1, b.admin, fresh+strings.Replace(manifest("beta", "runc", ""), "/v1", "/v1beta1", 1), "apply", "-f", "-"), "node.k8s.io/v1beta1")

	b.kubectl(t, manifest("shared", "runc", fmt.Sprintf(overhead, "2Mi")), "apply", "--server-side", "--force-conflicts", "--field-manager=another", "-f", "-")
	mine := fresh + manifest("shared", "runc", fmt.Sprintf(overhead, "3Mi"))
	none(berth(t, 1, b.admin, mine, "apply", "-f", "-"), `conflict with "another"`, ".overhead.podFixed.memory", "--force-conflicts")
	none(berth(t, 2, b.admin, mine, "apply", "-f", "-", "--diff"), `conflict with "another"`)
	has(t, berth(t, 0, b.admin, mine, "apply", "-f", "-", "--force-conflicts").stdout, "fresh created\n", "shared configured\n")
	b.kubectl(t, "", "delete", "runtimeclass", "fresh")

	// A guest who may write one class, and not the other.
	none(berth(t, 1, b.guest, fresh, "apply", "-f", "-"), `you need the verb "list" on "runtimeclasses.node.k8s.io"`)
	b.allow(t, map[string]any{"apiGroups": []string{"node.k8s.io"}, "resources": []string{"runtimeclasses"}, "verbs": []string{"list", "create"}},
		map[string]any{"apiGroups": []string{"node.k8s.io"}, "resources": []string{"runtimeclasses"}, "resourceNames": []string{"fresh"}, "verbs": []string{"patch"}})
	r := result{}
	testbed.Eventually(t, time.Minute, func() error {
		if r = run(t, fresh, []string{"KUBECONFIG=" + b.guest}, "apply", "-f", "-", "--dry-run=server"); r.code != 0 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	none(berth(t, 1, b.guest, fresh+manifest("other", "runc", ""), "apply", "-f", "-"), `you need the verb "patch" on "runtimeclasses.node.k8s.io"`, `"guest" cannot patch`)
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
				t.Errorf("%d: %s", status, answer)
			}
		}
	})
}

// An apply that fails on its way leaves all as it was, with the owners of all fields.
func applyIsUndone(t *testing.T, b *bed) {
	first := manifest("a", "runc", fmt.Sprintf(overhead, "1Mi")) + manifest("b", "runc", "") + manifest("d", "runc", fmt.Sprintf(overhead, "1Mi"))
	// a is changed, b is not, c is new, d fails.
	next := manifest("a", "runc", fmt.Sprintf(overhead, "2Mi")) + manifest("b", "runc", "") + manifest("c", "runc", "") + manifest("d", "runc", fmt.Sprintf(overhead, "2Mi"))
	for _, c := range []struct {
		name string
		fail fault
		told []string
		left string // the memory of a and d that stays
	}{
		{"refused", fault{path: classesPath + "/d", status: http.StatusInternalServerError}, []string{`RuntimeClass "d" was not applied`, `"c" was deleted again`, `"a" was restored`}, "1Mi 1Mi"},
		{"unanswered", fault{path: classesPath + "/d", passed: true}, []string{`RuntimeClass "d" was not applied`, `"d" was restored`, `"c" was deleted again`, `"a" was restored`}, "1Mi 1Mi"},
		// Who has created it is not known: another call may have.
		{"new and unanswered", fault{path: classesPath + "/c", passed: true}, []string{`RuntimeClass "c" was not applied`, `"c" may have been applied, and is kept`, "run: kubectl delete --ignore-not-found runtimeclass.node.k8s.io/c\n", `"a" was restored`}, "1Mi 1Mi"},
		{"the first", fault{path: classesPath + "/a", status: http.StatusInternalServerError}, []string{`RuntimeClass "a" was not applied, and nothing else`}, "1Mi 1Mi"},
		{"away", fault{path: classesPath + "/d", dead: true}, []string{`"a" was applied and is kept`, `"c" was applied and is kept`, `RuntimeClass "d" may have been applied`, "run: kubectl delete --ignore-not-found runtimeclass.node.k8s.io/c\n", "run: kubectl replace -f "}, "2Mi 1Mi"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.empty(t, classesPath)
			b.kubectl(t, first, "apply", "--server-side", "--field-manager=another", "-f", "-")
			a, d := b.class(t, "a"), b.class(t, "d")
			p := b.proxy(t, c.fail)
			r := berth(t, 1, p, next, "apply", "-f", "-", "--force-conflicts")
			has(t, r.stderr, c.told...)
			if r.stdout != "" {
				t.Errorf("it says %s", r.stdout)
			}
			gone := c.fail.dead
			if got := b.class(t, "c"); (got != nil) != (gone || c.fail.path == classesPath+"/c") {
				t.Errorf("c is %+v", got)
			}
			for _, old := range []*struct {
				was *metav1.ObjectMeta
				now *metav1.ObjectMeta
			}{{&a.ObjectMeta, &b.class(t, "a").ObjectMeta}, {&d.ObjectMeta, &b.class(t, "d").ObjectMeta}} {
				if !gone && !reflect.DeepEqual(old.was.ManagedFields, old.now.ManagedFields) {
					t.Errorf("%s has other owners than before:\n%+v\n%+v", old.was.Name, old.was.ManagedFields, old.now.ManagedFields)
				}
			}
			if got := b.class(t, "a").Overhead.PodFixed.Memory().String() + " " + b.class(t, "d").Overhead.PodFixed.Memory().String(); got != c.left {
				t.Errorf("a and d have %s", got)
			}
			// Whatever it was, the next one works.
			has(t, berth(t, 0, b.admin, next, "apply", "-f", "-", "--force-conflicts").stdout, "runtimeclass.node.k8s.io/d configured\n")
		})
	}
}

// Who interrupts an apply gets it undone.
func applyIsInterrupted(t *testing.T, b *bed) {
	b.empty(t, classesPath)
	reached, goOn := make(chan struct{}), make(chan struct{})
	p := b.proxy(t, fault{path: classesPath + "/second", held: func(gone <-chan struct{}) {
		close(reached)
		select {
		case <-gone:
		case <-goOn:
		}
	}})
	var mistakes bytes.Buffer
	c := command(t, manifest("first", "runc", "")+manifest("second", "runc", ""), []string{"KUBECONFIG=" + p}, "apply", "-f", "-")
	c.Stderr = &mistakes
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case <-reached:
	case err := <-ended:
		close(goOn)
		t.Fatalf("%v: %s", err, mistakes.String())
	}
	if b.class(t, "first") == nil {
		t.Error("the first was not applied")
	}
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("it has succeeded")
	}
	close(goOn)
	has(t, mistakes.String(), `RuntimeClass "second" was not applied: `, "interrupted", `RuntimeClass "first" was deleted again`)
	if c.ProcessState.ExitCode() != 1 || b.class(t, "first") != nil || b.class(t, "second") != nil {
		t.Errorf("exit status %d, %s", c.ProcessState.ExitCode(), mistakes.String())
	}
}

func applyGivenWrong(t *testing.T, b *bed) {
	b.empty(t, classesPath)
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}]}\n"
	long := strings.Repeat("a", 63)
	nowhere := unreachable(t)
	stranger := file(t, "stranger.yaml", strings.ReplaceAll(b.kubectl(t, "", "config", "view", "--raw", "--minify"), "token: ", "token: x"))
	list := &strings.Builder{}
	list.WriteString("apiVersion: v1\nkind: List\nitems:\n")
	for i := range 2000 {
		fmt.Fprintf(list, "- apiVersion: node.k8s.io/v1\n  kind: RuntimeClass\n  metadata:\n    name: c-%d\n  handler: runc\n", i)
	}
	for _, c := range []struct {
		name, kubeconfig, stdin string
		args                    string
		code                    int
		stdout, stderr          string
	}{
		{"not YAML", b.admin, "a: [\n", "-f -", 2, "", "standard input:1: document 1: is not YAML: "},
		{"another kind", b.admin, pod, "-f -", 2, "", "no RuntimeClass found in -, but standard input:1: document 1: Pod p"},
		{"several kinds", b.admin, pod + manifest("one", "runc", ""), "-f -", 0, "one created\n", "note: standard input:1: document 1: Pod p is skipped"},
		{"no file", b.admin, "", "-f /nowhere.yaml", 2, "", "/nowhere.yaml: no such file"},
		{"two sources", b.admin, "", "-f - --from-nodes", 2, "", "one of -f, --from-nodes and --handlers"},
		{"no source", b.admin, "", "", 2, "", "one of -f, --from-nodes and --handlers"},
		{"a dry run of no kind", b.admin, "", "-f - --dry-run=maybe", 2, "", "--dry-run=maybe must be none, client or server"},
		{"a form of no kind", b.admin, "", "-f - -o xml", 2, "", "unknown output format -o xml"},
		{"the longest names", b.admin, manifest(strings.Repeat(long+".", 3)+long[:61], long, ""), "-f -", 0, "created\n", ""},
		{"too long a name", b.admin, manifest(strings.Repeat(long+".", 3)+long[:62], long, ""), "-f -", 1, "", "must be no more than 253 "},
		{"too long a handler", b.admin, manifest("x", long+"a", ""), "-f -", 1, "", "must be no more than 63 "},
		{"a handler with the longest name", b.admin, "", "--handlers " + long, 0, long + " created\n", ""},
		{"ten thousand lines with one mistake", b.admin, list.String() + "- apiVersion: node.k8s.io/v1\n  kind: RuntimeClass\n  metadata: {name: c-7}\n  handler: runc\n", "-f -", 1, "", "standard input:10006: document 1: error: RuntimeClass \"c-7\" is also at standard input:39"},
		{"no server, none asked", nowhere, manifest("x", "runc", ""), "-f - --dry-run=client", 0, "x would be applied (dry run)\n", ""},
		{"no server", nowhere, manifest("x", "runc", ""), "-f -", 1, "", "cannot reach the API server https://127.0.0.1:1: "},
		{"no kubeconfig", "/nowhere/config", manifest("x", "runc", ""), "-f - --kubeconfig /nowhere/config", 2, "", "/nowhere/config"},
		{"no such context", b.admin, manifest("x", "runc", ""), "-f - --context other", 2, "", `"other"`},
		{"a stranger", stranger, manifest("x", "runc", ""), "-f -", 1, "", "rejected your credentials"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := berth(t, c.code, c.kubeconfig, c.stdin, append([]string{"apply"}, strings.Fields(c.args)...)...)
			if !strings.Contains(r.stdout, c.stdout) || !strings.Contains(r.stderr, c.stderr) || c.stdout == "" && r.stdout != "" {
				t.Errorf("got %+v", r)
			}
		})
	}
}
