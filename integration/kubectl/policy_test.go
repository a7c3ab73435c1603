package kubectl

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/integration/testbed"
)

const (
	policyGroup   = "/apis/admissionregistration.k8s.io/v1/"
	namespacePath = "/api/v1/namespaces"
)

// inventory is what "berth capabilities" says on a node.
const inventory = `handlers:
- name: runc
  default: true
  isolation: shared-kernel
  capabilities: {host-network: {answer: "yes", source: ran}, exec: {answer: "yes", source: ran}}
- name: kata
  isolation: vm
  conforms: [sandboxed/v1, vm/v1]
  capabilities: {host-network: {answer: "no", source: declared, note: a kernel of its own}, exec: {answer: unknown}}
`

// annotated makes classes of the inventory.
func (b *bed) annotated(t *testing.T) {
	t.Helper()
	b.empty(t, classesPath)
	berth(t, 0, b.admin, "", "apply", "--handlers", file(t, "handlers.yaml", inventory), "--any-node")
}

// Whoever may list classes sees what they give, and nothing of nodes.
func classes(t *testing.T, b *bed) {
	b.annotated(t)
	b.kubectl(t, manifest("plain", "crun", fmt.Sprintf(overhead, "5Mi"))+strings.Replace(manifest("wrong", "x", ""), "{name: wrong}", "{name: wrong, annotations: {berth.dev/isolation: strong}}", 1), "create", "-f", "-")
	has(t, berth(t, 1, b.guest, "", "classes").stderr, `you need the verb "list" on "runtimeclasses.node.k8s.io"`)
	b.allow(t, map[string]any{"apiGroups": []string{"node.k8s.io"}, "resources": []string{"runtimeclasses"}, "verbs": []string{"list"}})
	r := result{}
	testbed.Eventually(t, time.Minute, func() error {
		if r = run(t, "", []string{"KUBECONFIG=" + b.guest}, "classes"); r.code != 0 {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	want := `CLASS  HANDLER         ISOLATION      CONFORMS             OVERHEAD    NOT SUPPORTED
kata   kata            vm             sandboxed/v1, vm/v1  -           host-network
plain  crun            -              -                    memory=5Mi  not annotated
runc   runc (default)  shared-kernel  -                    -           -
wrong  x               -              -                    -           not annotated
`
	if r.stdout != want {
		t.Errorf("got\n%s", r.stdout)
	}
	has(t, r.stderr, `note: the cluster: annotation berth.dev/isolation of RuntimeClass wrong has the wrong value: isolation "strong" must be one of`)
	has(t, berth(t, 0, b.guest, "", "classes", "kata", "-o", "wide").stdout, "UNKNOWN")
	has(t, berth(t, 0, b.guest, "", "classes", "-o", "json").stdout, `"note": "a kernel of its own"`)
	has(t, berth(t, 1, b.guest, "", "classes", "nobody").stderr, `RuntimeClass "nobody" does not exist`)
	has(t, berth(t, 0, b.guest, "", "__complete", "classes", "").stdout, "kata\nplain\nrunc\n")
	// Nodes do not report it, and do not take it away.
	b.empty(t, nodesPath)
	b.node(t, "a", true, nil, "", "runc", "kata")
	has(t, berth(t, 0, b.admin, "", "apply", "--from-nodes", "--any-node", "--dry-run=client", "-o", "json").stdout, `"berth.dev/isolation": "vm"`, `"berth.dev/conforms": "sandboxed/v1,vm/v1"`, `\"note\":\"a kernel of its own\"`, `"berth.dev/default": "true"`)
	has(t, berth(t, 0, b.admin, "", "apply", "--from-nodes", "--any-node").stdout, "kata unchanged", "runc unchanged")
	if r := berth(t, 0, b.guest, "", "classes"); !strings.Contains(r.stdout, "kata   kata            vm ") || !strings.Contains(r.stdout, "runc   runc (default)  shared-kernel") {
		t.Errorf("after an apply of what nodes report:\n%s", r.stdout)
	}
	// What fit says of a pod follows from them, too.
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {hostNetwork: true, containers: [{name: c, image: i}]}\n"
	has(t, berth(t, 0, b.admin, pod, "fit", "-f", "-").stdout, "vm             -           -      spec.hostNetwork: true needs host-network, but the handler does not support it: a kernel of its own (a)")
}

// removePolicies removes all that were applied when the test ends.
func (b *bed) removePolicies(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		for _, kind := range []string{"mutatingadmissionpolicybindings", "mutatingadmissionpolicies", "validatingadmissionpolicybindings", "validatingadmissionpolicies"} {
			if status, answer := b.Send(t, http.MethodDelete, policyGroup+kind, nil); status != http.StatusOK {
				t.Errorf("delete all %s: %d: %s", kind, status, answer)
			}
		}
	})
}

func policies(t *testing.T, b *bed) {
	b.annotated(t)
	b.removePolicies(t)
	if status, answer := b.Send(t, http.MethodPost, namespacePath, []byte("{metadata: {name: strangers, labels: {trust: untrusted}}}")); status != http.StatusCreated {
		t.Fatalf("%d: %s", status, answer)
	}
	rules := file(t, "rules.yaml", "rules:\n- name: host-network\n  pods: {asks: [host-network]}\n  isolation: shared-kernel\n- name: untrusted\n  namespaces: {labels: {trust: untrusted}}\n  isolation: strongest\n")

	// What is printed is what kubectl can apply.
	printed := berth(t, 0, b.admin, "", "policy", "--rules", rules).stdout
	has(t, b.kubectl(t, printed, "apply", "--dry-run=server", "-f", "-"), "mutatingadmissionpolicy.admissionregistration.k8s.io/berth-choose created (server dry run)", "validatingadmissionpolicybinding.admissionregistration.k8s.io/berth-workloads created (server dry run)")

	want := ""
	for _, half := range []string{"", "binding"} {
		want += "mutatingadmissionpolicy" + half + ".admissionregistration.k8s.io/berth-choose %[1]s\n"
		for _, name := range []string{"berth-classes", "berth-refuse", "berth-warn", "berth-workloads"} {
			want += "validatingadmissionpolicy" + half + ".admissionregistration.k8s.io/" + name + " %[1]s\n"
		}
	}
	if r := berth(t, 0, b.admin, "", "policy", "--rules", rules, "--apply", "--dry-run"); r.stdout != fmt.Sprintf(want, "created (server dry run)") {
		t.Errorf("got %+v", r)
	}
	if status, _ := b.Send(t, http.MethodGet, policyGroup+"validatingadmissionpolicies/berth-refuse", nil); status != http.StatusNotFound {
		t.Errorf("a dry run has made a policy: %d", status)
	}
	for _, effect := range []string{"created", "unchanged"} {
		if r := berth(t, 0, b.admin, "", "policy", "--rules", rules, "--apply"); r.stdout != fmt.Sprintf(want, effect) || r.stderr != "" {
			t.Errorf("got %+v", r)
		}
	}

	// Whoever creates a pod that cannot run is told at once, and so is who creates a workload.
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: %s}\nspec: {%s containers: [{name: c, image: i}]}\n"
	const why = "spec.hostNetwork: true needs host-network, but the handler does not support it: a kernel of its own; no class with the same or stronger isolation supports it"
	create := func(stdin string) (string, error) {
		c := exec.CommandContext(t.Context(), testbed.Part(t, testbed.Kubectl), "create", "--dry-run=server", "-o", "jsonpath={.spec.runtimeClassName}", "-f", "-")
		c.Env, c.Stdin = append(c.Environ(), "KUBECONFIG="+b.admin, "HOME="+t.TempDir()), strings.NewReader(stdin)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	testbed.Eventually(t, time.Minute, func() error {
		if out, err := create(fmt.Sprintf(pod, "default", "runtimeClassName: kata, hostNetwork: true,")); err == nil || !strings.Contains(out, "'berth-refuse' denied request: "+why) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	workload := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {a: b}}\n  template: {metadata: {labels: {a: b}}, spec: {runtimeClassName: kata, hostNetwork: true, containers: [{name: c, image: i}]}}\n"
	testbed.Eventually(t, time.Minute, func() error {
		if out, err := create(workload); err != nil || !strings.Contains(out, "Warning: Validation failed for ValidatingAdmissionPolicy 'berth-workloads' with binding 'berth-workloads': "+why) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	for _, c := range []struct{ namespace, spec, class string }{{"strangers", "", "kata"}, {"strangers", "hostNetwork: true,", "runc"}, {"default", "", ""}, {"kube-system", "hostNetwork: true,", ""}} {
		testbed.Eventually(t, time.Minute, func() error {
			if out, err := create(fmt.Sprintf(pod, c.namespace, c.spec)); err != nil || out != c.class {
				return fmt.Errorf("a pod of %s with %q gets %q: %w", c.namespace, c.spec, out, err)
			}
			return nil
		})
	}

	// What is left of an earlier call is told, and removed by who asks for that.
	r := berth(t, 0, b.admin, "", "policy", "--apply", "--workloads", "ignore")
	has(t, r.stderr, "note: MutatingAdmissionPolicy berth-choose is still there, and not among these; remove it by --prune, or by: kubectl delete mutatingadmissionpolicybinding/berth-choose mutatingadmissionpolicy/berth-choose\n",
		"note: ValidatingAdmissionPolicy berth-workloads is still there")
	const others = `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: of-another}, spec: {matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [secrets]}]}, validations: [{expression: "true"}]}}`
	b.kubectl(t, others, "create", "-f", "-")
	pruned := ""
	for _, name := range []string{"mutatingadmissionpolicybinding.admissionregistration.k8s.io/berth-choose", "validatingadmissionpolicybinding.admissionregistration.k8s.io/berth-classes", "validatingadmissionpolicybinding.admissionregistration.k8s.io/berth-workloads", "mutatingadmissionpolicy.admissionregistration.k8s.io/berth-choose", "validatingadmissionpolicy.admissionregistration.k8s.io/berth-classes", "validatingadmissionpolicy.admissionregistration.k8s.io/berth-workloads"} {
		pruned += name + " pruned%[1]s\n"
	}
	for _, c := range []struct{ args, suffix, left string }{
		{"--dry-run", " (server dry run)", "berth-choose"},
		{"--force-conflicts", "", ""},
	} {
		r := berth(t, 0, b.admin, "", "policy", "--apply", "--workloads", "ignore", "--prune", c.args)
		if !strings.HasSuffix(r.stdout, "\n"+fmt.Sprintf(pruned, c.suffix)) || r.stderr != "" {
			t.Errorf("%s: got %+v", c.args, r)
		}
		if got := b.kubectl(t, "", "get", "mutatingadmissionpolicies", "-o", "jsonpath={.items[*].metadata.name}"); got != c.left {
			t.Errorf("%s: %s are left", c.args, got)
		}
	}
	b.kubectl(t, "", "get", "validatingadmissionpolicy", "of-another")
	// Fields that another manager has taken.
	b.kubectl(t, `{"spec": {"failurePolicy": "Fail"}}`, "patch", "validatingadmissionpolicy", "berth-refuse", "--type=merge", "--patch-file=/dev/stdin", "--field-manager=another")
	has(t, berth(t, 1, b.admin, "", "policy", "--apply").stderr, "nothing was applied: ValidatingAdmissionPolicy \"berth-refuse\": ", `conflict with "another"`, "--force-conflicts")
	has(t, berth(t, 0, b.admin, "", "policy", "--apply", "--force-conflicts").stdout, "validatingadmissionpolicy.admissionregistration.k8s.io/berth-refuse configured\n")
	has(t, berth(t, 0, b.admin, "", "__complete", "policy", "--default", "").stdout, "kata\nrunc\n")
	has(t, berth(t, 0, b.admin, "", "__complete", "policy", "--exempt", "").stdout, "kube-system\n")
	has(t, berth(t, 0, b.admin, "", "__complete", "policy", "--workloads", "").stdout, "warn\ndeny\nignore\n")
}

// policiesWithOwners are the policies with the label of the command, each with who owns which of its fields.
func (b *bed) policiesWithOwners(t *testing.T) string {
	t.Helper()
	out := b.kubectl(t, "", "get", "-o", "json", "--show-managed-fields", "validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingadmissionpolicies,mutatingadmissionpolicybindings", "-l", "app.kubernetes.io/managed-by=kubectl-berth")
	var list struct{ Items []unstructured.Unstructured }
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, one := range list.Items {
		var managers []string
		for _, m := range one.GetManagedFields() {
			if m.Subresource == "" {
				managers = append(managers, m.Manager+string(m.Operation)+m.FieldsV1.String())
			}
		}
		fmt.Fprintln(&all, one.GetKind(), one.GetName(), one.GetUID(), one.Object["spec"], managers)
	}
	return all.String()
}

// An apply that fails on its way leaves all as it was, or says how to get there. Nothing is
// lost by trying again.
func policyIsUndone(t *testing.T, b *bed) {
	b.annotated(t)
	const refuse, binding = policyGroup + "validatingadmissionpolicies/berth-refuse", policyGroup + "validatingadmissionpolicybindings/berth-refuse"
	rules := file(t, "rules.yaml", "rules:\n- {name: all, isolation: strongest}\n")
	state := func() string { return b.policiesWithOwners(t) }
	for _, c := range []struct {
		name  string
		first bool // policies of an earlier call are there, with fewer exempt namespaces
		fail  fault
		told  []string
		kept  bool
	}{
		{"refused", false, fault{path: binding, status: http.StatusInternalServerError}, []string{`ValidatingAdmissionPolicyBinding "berth-refuse" was not applied`, `ValidatingAdmissionPolicy "berth-refuse" was deleted again`, `MutatingAdmissionPolicyBinding "berth-choose" was deleted again`}, false},
		// Who has created a binding that nobody has answered for is not known: another call may have.
		{"unanswered", false, fault{path: binding, passed: true}, []string{`ValidatingAdmissionPolicyBinding "berth-refuse" may have been applied, and is kept`, `MutatingAdmissionPolicy "berth-choose" was deleted again`, "to undo it by hand, run: kubectl delete --ignore-not-found validatingadmissionpolicybinding.admissionregistration.k8s.io/berth-refuse\n"}, true},
		{"changed and refused", true, fault{path: binding, status: http.StatusForbidden}, []string{`ValidatingAdmissionPolicyBinding "berth-refuse" was not applied`, `ValidatingAdmissionPolicy "berth-refuse" was restored`, `MutatingAdmissionPolicy "berth-choose" was deleted again`}, false},
		{"changed and unanswered", true, fault{path: refuse, passed: true}, []string{`ValidatingAdmissionPolicy "berth-refuse" was not applied`, `ValidatingAdmissionPolicy "berth-refuse" was restored`}, false},
		{"away", true, fault{path: binding, dead: true}, []string{
			`ValidatingAdmissionPolicyBinding "berth-refuse" may have been applied`, `ValidatingAdmissionPolicy "berth-refuse" was applied and is kept`,
			"to undo it by hand, run: kubectl delete --ignore-not-found validatingadmissionpolicybinding.admissionregistration.k8s.io/berth-classes mutatingadmissionpolicybinding.admissionregistration.k8s.io/berth-choose validatingadmissionpolicy.admissionregistration.k8s.io/berth-classes mutatingadmissionpolicy.admissionregistration.k8s.io/berth-choose\n",
		}, true},
		{"without the right to undo", true, fault{path: binding, user: kubelet.Guest, status: http.StatusInternalServerError}, []string{
			`ValidatingAdmissionPolicyBinding "berth-refuse" was not applied`, `ValidatingAdmissionPolicy "berth-refuse" was applied and is kept`,
			`you need the verb "update" on "validatingadmissionpolicies.admissionregistration.k8s.io"`, `you need the verb "delete" on "mutatingadmissionpolicies.admissionregistration.k8s.io"`,
			"to undo it by hand, run: kubectl delete --ignore-not-found ", "run: kubectl replace -f ",
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b.removePolicies(t)
			if c.fail.user != "" {
				kinds := []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings"}
				b.allow(t, map[string]any{"apiGroups": []string{"admissionregistration.k8s.io"}, "resources": kinds, "verbs": []string{"get", "list", "create", "patch"}},
					map[string]any{"apiGroups": []string{"node.k8s.io"}, "resources": []string{"runtimeclasses"}, "verbs": []string{"list"}})
				testbed.Eventually(t, time.Minute, func() error {
					if r := run(t, "", []string{"KUBECONFIG=" + b.guest}, "policy", "--apply", "--dry-run"); r.code != 0 {
						return fmt.Errorf("%+v", r)
					}
					return nil
				})
			}
			if c.first {
				berth(t, 0, b.admin, "", "policy", "--apply", "--workloads", "ignore")
			}
			before := state()
			r := berth(t, 1, b.proxy(t, c.fail), "", "policy", "--rules", rules, "--exempt", "another", "--apply", "--workloads", "ignore")
			has(t, r.stderr, c.told...)
			if r.stdout != "" {
				t.Errorf("it says %s", r.stdout)
			}
			if after := state(); (after != before) != c.kept {
				t.Errorf("got\n%s\nwas\n%s\n%s", after, before, r.stderr)
			}
			if c.kept { // the commands do what they are for
				for _, line := range strings.Split(r.stderr, "\n") {
					if _, command, found := strings.Cut(line, "run: kubectl "); found {
						b.kubectl(t, "", strings.Fields(command)...)
					}
				}
				if got := regexp.MustCompile(`(?m) \[.*$`).ReplaceAllString(state(), ""); got != regexp.MustCompile(`(?m) \[.*$`).ReplaceAllString(before, "") {
					t.Errorf("by hand, got\n%s\nwas\n%s", got, before)
				}
			}
			// Whatever it was, the next one works.
			berth(t, 0, b.admin, "", "policy", "--rules", rules, "--exempt", "another", "--apply", "--workloads", "ignore", "--force-conflicts")
			if r := berth(t, 0, b.admin, "", "policy", "--rules", rules, "--exempt", "another", "--apply", "--workloads", "ignore"); strings.Count(r.stdout, " unchanged\n") != strings.Count(r.stdout, "\n") {
				t.Errorf("got %s", r.stdout)
			}
		})
	}
}

// Who is killed on the way has nothing undone, and finishes it by the next call.
func policyIsFinished(t *testing.T, b *bed) {
	b.annotated(t)
	b.removePolicies(t)
	killed := make(chan func(), 1)
	p := b.proxy(t, fault{path: policyGroup + "validatingadmissionpolicybindings/berth-refuse", held: func(gone <-chan struct{}) {
		(<-killed)()
		<-gone
	}})
	c := command(t, "", []string{"KUBECONFIG=" + p}, "policy", "--apply")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	killed <- func() { unix.Kill(-c.Process.Pid, unix.SIGKILL) } //nolint:errcheck // seen below
	if err := c.Wait(); err == nil {
		t.Error("it has succeeded")
	}
	b.kubectl(t, "", "get", "validatingadmissionpolicy", "berth-refuse")
	if status, _ := b.Send(t, http.MethodGet, policyGroup+"validatingadmissionpolicybindings/berth-refuse", nil); status != http.StatusNotFound {
		t.Errorf("its policy is in force: %d", status)
	}
	has(t, berth(t, 0, b.admin, "", "policy", "--apply").stdout, "validatingadmissionpolicy.admissionregistration.k8s.io/berth-refuse unchanged\n", "validatingadmissionpolicybinding.admissionregistration.k8s.io/berth-refuse created\n")
}

// A class that pods are given is deleted: who does it is warned, its pods are refused rather
// than run without isolation, and audit says why.
func policyWithoutClass(t *testing.T, b *bed) {
	b.annotated(t)
	b.removePolicies(t)
	b.empty(t, nodesPath)
	b.node(t, "a", true, nil, "", "runc", "kata")
	rules := file(t, "rules.yaml", "rules:\n- name: untrusted\n  pods: {labels: {trust: untrusted}}\n  isolation: vm\n")
	berth(t, 0, b.admin, "", "policy", "--rules", rules, "--apply")
	for _, name := range []string{"kata", "runc"} {
		b.kubectl(t, "", "patch", "runtimeclass", name, "--type=json", "-p", `[{"op": "remove", "path": "/overhead"}]`)
	}
	berth(t, 0, b.admin, "", "audit", "--strict")
	const pod = "/api/v1/namespaces/default/pods?dryRun=All"
	body := []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {trust: untrusted}}\nspec: {containers: [{name: c, image: i}]}\n")
	sends := func(status int, part string) {
		t.Helper()
		testbed.Eventually(t, time.Minute, func() error {
			if got, answer := b.Send(t, http.MethodPost, pod, body); got != status || !strings.Contains(string(answer), part) {
				return fmt.Errorf("%d: %s", got, answer)
			}
			return nil
		})
	}
	sends(http.StatusCreated, `"runtimeClassName":"kata"`)
	testbed.Eventually(t, time.Minute, func() error {
		const warning = "Warning: Validation failed for ValidatingAdmissionPolicy 'berth-classes' with binding 'berth-classes': the policy berth-choose gives pods this class, and they are refused without it; "
		if out := b.kubectl(t, "", "delete", "runtimeclass", "kata", "--dry-run=server"); !strings.Contains(out, warning) {
			return fmt.Errorf("deleted without a warning: %s", out)
		}
		return nil
	})
	if out := b.kubectl(t, "", "delete", "runtimeclass", "runc", "--dry-run=server"); strings.Contains(out, "Warning: ") {
		t.Errorf("a class that no pod is given: %s", out)
	}
	b.kubectl(t, "", "delete", "runtimeclass", "kata")
	sends(http.StatusForbidden, `RuntimeClass \"kata\" not found`)
	again := func(handler string) string {
		return b.kubectl(t, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: kata}\nhandler: "+handler+"\n", "create", "--dry-run=server", "-f", "-")
	}
	has(t, again("runc"), "'berth-classes': the policy berth-choose gives pods this class because of the isolation of another handler; apply the policies again")
	if out := again("kata"); strings.Contains(out, "Warning: ") {
		t.Errorf("the same class, created again: %s", out)
	}
	r := berth(t, 3, b.admin, "", "audit")
	has(t, r.stdout, `MutatingAdmissionPolicy berth-choose: error: it gives pods a class that does not exist (kata): the API server refuses them, "RuntimeClass not found"; create the class again, or apply the policies again: `,
		"ValidatingAdmissionPolicy berth-refuse: warning: it may tell users to use a class that does not exist: kata; ")
	// What the finding says to do helps.
	berth(t, 0, b.admin, "", "policy", "--apply", "--prune")
	sends(http.StatusCreated, `"name":"p"`)
	if r := berth(t, 0, b.admin, "", "audit"); strings.Contains(r.stdout, "policy-without-class") {
		t.Errorf("got %s", r.stdout)
	}
	// Whoever may not list policies is told that they are left out.
	all := []map[string]any{{"apiGroups": []string{""}, "resources": []string{"nodes", "pods", "events"}, "verbs": []string{"list"}}, {"apiGroups": []string{"node.k8s.io"}, "resources": []string{"runtimeclasses"}, "verbs": []string{"list"}}}
	b.allow(t, all...)
	testbed.Eventually(t, time.Minute, func() error {
		r := run(t, "", []string{"KUBECONFIG=" + b.guest}, "audit")
		if r.code != 0 || !strings.Contains(r.stderr, "note: admission policies are not checked: ") || !strings.Contains(r.stderr, `you need the verb "list" on "mutatingadmissionpolicies.admissionregistration.k8s.io"`) {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

// What a user may not do is named, and nothing is applied.
func policyRights(t *testing.T, b *bed) {
	b.annotated(t)
	b.removePolicies(t)
	has(t, berth(t, 1, b.guest, "", "policy").stderr, `you need the verb "list" on "runtimeclasses.node.k8s.io"`)
	known := file(t, "handlers.yaml", inventory)
	made := file(t, "classes.yaml", berth(t, 0, b.guest, "", "generate", "--handlers", known).stdout)
	r := berth(t, 1, b.guest, "", "policy", "--classes", made, "--apply")
	has(t, r.stderr, "error: nothing was applied: ", `you need the verb "get" on "validatingadmissionpolicies.admissionregistration.k8s.io"`, `you need the verb "get" on "validatingadmissionpolicybindings.admissionregistration.k8s.io"`)
	group, both := []string{"admissionregistration.k8s.io"}, []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"}
	b.allow(t, map[string]any{"apiGroups": group, "resources": both, "verbs": []string{"get", "create"}},
		map[string]any{"apiGroups": group, "resources": both[:1], "verbs": []string{"patch"}})
	testbed.Eventually(t, time.Minute, func() error {
		r := run(t, "", []string{"KUBECONFIG=" + b.guest}, "policy", "--classes", made, "--apply")
		if text := `you need the verb "patch" on "validatingadmissionpolicybindings.admissionregistration.k8s.io"`; r.code != 1 || !strings.Contains(r.stderr, text) || strings.Contains(r.stderr, `"get"`) {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	if status, _ := b.Send(t, http.MethodGet, policyGroup+"validatingadmissionpolicies/berth-refuse", nil); status != http.StatusNotFound {
		t.Errorf("something was applied: %d", status)
	}
	has(t, berth(t, 1, unreachable(t), "", "policy").stderr, "cannot reach the API server https://127.0.0.1:1: ")
	has(t, berth(t, 0, unreachable(t), "", "policy", "--classes", made).stdout, "name: berth-refuse\n")
}

// Two administrators apply at the same time where nothing was: while one is on its way, the
// other applies everything. The first then has nothing to undo of what it has not done.
func policyOfTwo(t *testing.T, b *bed) {
	b.annotated(t)
	for _, at := range []string{"validatingadmissionpolicies/berth-refuse", "validatingadmissionpolicybindings/berth-workloads"} {
		t.Run(at, func(t *testing.T) {
			b.removePolicies(t)
			var first atomic.Bool
			front := b.Front(t, func(pass http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") == "" && strings.HasSuffix(r.URL.Path, at) && !first.Swap(true) {
						run(t, "", []string{"KUBECONFIG=" + b.admin}, "policy", "--apply")
					}
					pass.ServeHTTP(w, r)
				})
			})
			r := berth(t, 1, b.Kubeconfig(t, kubelet.Admin, front), "", "policy", "--apply")
			has(t, r.stderr, "it was created by another client meanwhile; apply again")
			if status, answer := b.Send(t, http.MethodGet, policyGroup+at, nil); status != http.StatusOK {
				t.Errorf("another has applied %s, and it was removed: %d %s", at, status, answer)
			}
			berth(t, 0, b.admin, "", "policy", "--apply")
		})
	}
}

// While one applies rules, another applies none, and prunes.
func policyIsPruned(t *testing.T, b *bed) {
	b.annotated(t)
	b.removePolicies(t)
	rules := file(t, "rules.yaml", "rules:\n- {name: b, isolation: vm}\n")
	var first atomic.Bool
	front := b.Front(t, func(pass http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") == "" && strings.HasSuffix(r.URL.Path, "bindings/berth-choose") && !first.Swap(true) {
				for _, path := range []string{"mutatingadmissionpolicies/berth-choose", "validatingadmissionpolicies/berth-classes"} {
					if status, answer := b.Send(t, http.MethodDelete, policyGroup+path, nil); status != http.StatusOK {
						t.Errorf("%d: %s", status, answer)
					}
				}
			}
			pass.ServeHTTP(w, r)
		})
	})
	r := berth(t, 1, b.Kubeconfig(t, kubelet.Admin, front), "", "policy", "--apply", "--rules", rules)
	has(t, r.stderr, "another client was at work meanwhile; apply again", `MutatingAdmissionPolicy "berth-choose" was removed`, `ValidatingAdmissionPolicy "berth-classes" was removed`)
	berth(t, 0, b.admin, "", "policy", "--apply", "--rules", rules)
}

// What another administrator was told to be in force stays so, although it found a part of it as
// who fails then had made it.
func policyOfAnother(t *testing.T, b *bed) {
	b.annotated(t)
	rules := file(t, "rules.yaml", "rules:\n- {name: b, isolation: vm}\n")
	for name, args := range map[string][]string{"the same": nil, "others": {"--exempt", "another"}} {
		t.Run(name, func(t *testing.T) {
			b.removePolicies(t)
			var first atomic.Bool
			front := b.Front(t, func(pass http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPatch && r.URL.Query().Get("dryRun") == "" && strings.HasSuffix(r.URL.Path, "bindings/berth-choose") && !first.Swap(true) {
						if r := run(t, "", []string{"KUBECONFIG=" + b.admin}, append([]string{"policy", "--apply", "--prune"}, args...)...); r.code != 0 {
							t.Errorf("%+v", r)
						}
					}
					pass.ServeHTTP(w, r)
				})
			})
			r := berth(t, 1, b.Kubeconfig(t, kubelet.Admin, front), "", "policy", "--apply", "--rules", rules)
			has(t, r.stderr, `ValidatingAdmissionPolicyBinding "berth-refuse" was not applied: it was created by another client meanwhile; apply again`,
				`ValidatingAdmissionPolicy "berth-refuse" was applied and is kept: another client applies at the same time`)
			if r := berth(t, 0, b.admin, "", append([]string{"policy", "--apply"}, args...)...); strings.Count(r.stdout, " unchanged\n") != strings.Count(r.stdout, "\n") {
				t.Errorf("the other has applied what is now %s", r.stdout)
			}
		})
	}
}

// What kubectl has applied from a repository can be replaced whole, lists as well.
func policyOfKubectl(t *testing.T, b *bed) {
	b.annotated(t)
	rules := file(t, "rules.yaml", "rules:\n- {name: a, pods: {labels: {a: b}}, isolation: strongest}\n- {name: b, isolation: vm}\n")
	for _, how := range [][]string{{"apply", "-f", "-"}, {"apply", "--server-side", "-f", "-"}, {"create", "-f", "-"}} {
		t.Run(strings.Join(how, " "), func(t *testing.T) {
			b.removePolicies(t)
			b.kubectl(t, berth(t, 0, b.admin, "", "policy", "--rules", rules).stdout, how...)
			next := []string{"policy", "--workloads", "deny", "--exempt", ""}
			berth(t, 0, b.admin, "", append(next, "--apply", "--force-conflicts", "--dry-run")...)
			berth(t, 0, b.admin, "", append(next, "--apply", "--force-conflicts", "--prune")...)
			r := berth(t, 0, b.admin, "", append(next, "--apply")...)
			if strings.Count(r.stdout, " unchanged\n") != strings.Count(r.stdout, "\n") {
				t.Errorf("got %s", r.stdout)
			}
			for path, want := range map[string]string{"validatingadmissionpolicybindings/berth-workloads": `"validationActions":["Deny"]`, "validatingadmissionpolicies/berth-workloads": `"chosen"`, "validatingadmissionpolicies/berth-refuse": "kube-system"} {
				_, answer := b.Send(t, http.MethodGet, policyGroup+path, nil)
				var is struct{ Spec json.RawMessage }
				if err := json.Unmarshal(answer, &is); err != nil || strings.Contains(string(is.Spec), want) != strings.Contains(path, "bindings") {
					t.Errorf("%s: %v, %s", path, err, is.Spec)
				}
			}
		})
	}
}

// Who takes fields over by force and fails then has given them back to their owners.
func policyIsGivenBack(t *testing.T, b *bed) {
	b.annotated(t)
	b.removePolicies(t)
	b.kubectl(t, berth(t, 0, b.admin, "", "policy").stdout, "apply", "--server-side", "-f", "-")
	before := b.policiesWithOwners(t)
	p := b.proxy(t, fault{path: policyGroup + "validatingadmissionpolicies/berth-refuse", format: "application/apply-patch+yaml", status: http.StatusInternalServerError})
	has(t, berth(t, 1, p, "", "policy", "--exempt", "another", "--apply", "--force-conflicts").stderr,
		`ValidatingAdmissionPolicy "berth-refuse" was not applied: `, `ValidatingAdmissionPolicy "berth-refuse" was restored`)
	if after := b.policiesWithOwners(t); after != before {
		t.Errorf("got\n%s\nwas\n%s", after, before)
	}
}

// Rules give no class of a file that the cluster does not have.
func policyOfFiles(t *testing.T, b *bed) {
	b.empty(t, classesPath)
	b.removePolicies(t)
	classes := file(t, "classes.yaml", berth(t, 0, b.admin, "", "generate", "--handlers", file(t, "handlers.yaml", inventory)).stdout)
	rules := file(t, "rules.yaml", "rules:\n- {name: b, isolation: vm}\n")
	apply := []string{"policy", "--apply", "--classes", classes, "--rules", rules}
	has(t, berth(t, 1, b.admin, "", apply...).stderr, `nothing was applied: rules give RuntimeClass "kata", which the cluster does not have: apply it first`)
	b.kubectl(t, manifest("kata", "runc", ""), "create", "-f", "-")
	has(t, berth(t, 1, b.admin, "", apply...).stderr, `rules give RuntimeClass "kata" of the handler "kata", and in the cluster it has the handler "runc"`)
	b.kubectl(t, "", "delete", "runtimeclass", "kata")
	berth(t, 0, b.admin, "", "apply", "-f", classes)
	berth(t, 0, b.admin, "", apply...)
}
