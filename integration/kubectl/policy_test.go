package kubectl

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

const (
	policyGroup   = "/apis/admissionregistration.k8s.io/v1/"
	namespacePath = "/api/v1/namespaces"
)

// inventory is the output of "berth capabilities" on a node.
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

// annotated creates the classes that are generated from the inventory.
func (b *bed) annotated(t *testing.T) {
	t.Helper()
	b.empty(t, classesPath)
	b.kubectl(t, berth(t, 0, b.admin, "", "generate", "--handlers", file(t, "handlers.yaml", inventory), "--any-node").stdout, "apply", "--server-side", "-f", "-")
}

// Classes that are generated from nodes' reports keep annotations that nodes do not report.
func classes(t *testing.T, b *bed) {
	b.annotated(t)
	b.empty(t, nodesPath)
	b.node(t, "a", true, nil, "", "runc", "kata")
	b.kubectl(t, berth(t, 0, b.admin, "", "generate", "--any-node").stdout, "apply", "--server-side", "-f", "-")
	has(t, b.kubectl(t, "", "get", "runtimeclass", "-o", "json"), `"berth.dev/isolation": "vm"`, `"berth.dev/conforms": "sandboxed/v1,vm/v1"`, `\"note\":\"a kernel of its own\"`, `"berth.dev/default": "true"`)
	// fit uses the annotations, too.
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {hostNetwork: true, containers: [{name: c, image: i}]}\n"
	has(t, berth(t, 0, b.admin, pod, "fit", "-f", "-").stdout, "spec.hostNetwork: true needs host-network, but the handler does not support it: a kernel of its own (a)")
}

// removePolicies removes all admission policies and their bindings when the test ends.
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
		t.Fatalf("create a namespace: %d: %s", status, answer)
	}
	rules := file(t, "rules.yaml", "rules:\n- name: host-network\n  pods: {asks: [host-network]}\n  isolation: shared-kernel\n- name: untrusted\n  namespaces: {labels: {trust: untrusted}}\n  isolation: strongest\n")

	// Policies are printed before their bindings.
	printed := berth(t, 0, b.admin, "", "policy", "--rules", rules).stdout
	want := ""
	for _, half := range []string{"", "binding"} {
		want += "mutatingadmissionpolicy" + half + ".admissionregistration.k8s.io/berth-choose serverside-applied\n"
		for _, name := range []string{"berth-classes", "berth-refuse", "berth-warn", "berth-workloads"} {
			want += "validatingadmissionpolicy" + half + ".admissionregistration.k8s.io/" + name + " serverside-applied\n"
		}
	}
	if got := b.kubectl(t, printed, "apply", "--server-side", "-f", "-"); got != want {
		t.Errorf("kubectl applies\n%swant\n%s", got, want)
	}

	// A pod that cannot run is refused; a workload with such pods is created with a warning.
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
			return fmt.Errorf("create a pod that cannot run: %w: %s", err, out)
		}
		return nil
	})
	workload := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {a: b}}\n  template: {metadata: {labels: {a: b}}, spec: {runtimeClassName: kata, hostNetwork: true, containers: [{name: c, image: i}]}}\n"
	testbed.Eventually(t, time.Minute, func() error {
		if out, err := create(workload); err != nil || !strings.Contains(out, "Warning: Validation failed for ValidatingAdmissionPolicy 'berth-workloads' with binding 'berth-workloads': "+why) {
			return fmt.Errorf("create a deployment whose pods cannot run: %w: %s", err, out)
		}
		return nil
	})
	for _, c := range []struct{ namespace, spec, class string }{{"strangers", "", "kata"}, {"strangers", "hostNetwork: true,", "runc"}, {"default", "", ""}, {"kube-system", "hostNetwork: true,", ""}} {
		testbed.Eventually(t, time.Minute, func() error {
			if out, err := create(fmt.Sprintf(pod, c.namespace, c.spec)); err != nil || out != c.class {
				return fmt.Errorf("a pod of %s with %q gets the class %q: %w", c.namespace, c.spec, out, err)
			}
			return nil
		})
	}

	// kubectl prunes, by the label, only the policies that an earlier call has left.
	const others = `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: of-another}, spec: {matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [secrets]}]}, validations: [{expression: "true"}]}}`
	b.kubectl(t, others, "create", "-f", "-")
	prune := []string{"apply", "-f", "-", "--prune", "-l", "app.kubernetes.io/managed-by=kubectl-berth"}
	for _, kind := range []string{"MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"} {
		prune = append(prune, "--prune-allowlist=admissionregistration.k8s.io/v1/"+kind)
	}
	b.kubectl(t, printed, prune...)
	b.kubectl(t, berth(t, 0, b.admin, "", "policy", "--workloads", "ignore").stdout, prune...)
	for kind, want := range map[string]string{"mutatingadmissionpolicies": "", "mutatingadmissionpolicybindings": "", "validatingadmissionpolicies": "berth-refuse berth-warn of-another", "validatingadmissionpolicybindings": "berth-refuse berth-warn"} {
		if got := b.kubectl(t, "", "get", kind, "-o", "jsonpath={.items[*].metadata.name}"); got != want {
			t.Errorf("%s: %q are left, want %q", kind, got, want)
		}
	}
	has(t, berth(t, 0, b.admin, "", "__complete", "policy", "--exempt", "").stdout, "kube-system\n")
	has(t, berth(t, 0, b.admin, "", "__complete", "policy", "--workloads", "").stdout, "warn\ndeny\nignore\n")
}

// policyWithoutClass deletes a class that a policy gives to pods: the deletion has a warning, and
// such pods are refused rather than run without isolation.
func policyWithoutClass(t *testing.T, b *bed) {
	b.annotated(t)
	b.removePolicies(t)
	rules := file(t, "rules.yaml", "rules:\n- name: untrusted\n  pods: {labels: {trust: untrusted}}\n  isolation: vm\n")
	b.kubectl(t, berth(t, 0, b.admin, "", "policy", "--rules", rules).stdout, "apply", "--server-side", "-f", "-")
	const pod = "/api/v1/namespaces/default/pods?dryRun=All"
	body := []byte("apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {trust: untrusted}}\nspec: {containers: [{name: c, image: i}]}\n")
	sends := func(status int, part string) {
		t.Helper()
		testbed.Eventually(t, time.Minute, func() error {
			if got, answer := b.Send(t, http.MethodPost, pod, body); got != status || !strings.Contains(string(answer), part) {
				return fmt.Errorf("create a pod: %d: %s, want %d", got, answer, status)
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
		t.Errorf("the deletion of a class that no policy uses has a warning: %s", out)
	}
	b.kubectl(t, "", "delete", "runtimeclass", "kata")
	sends(http.StatusForbidden, `RuntimeClass \"kata\" not found`)
	again := func(handler string) string {
		return b.kubectl(t, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: kata}\nhandler: "+handler+"\n", "create", "--dry-run=server", "-f", "-")
	}
	has(t, again("runc"), "'berth-classes': the policy berth-choose gives pods this class because of the isolation of another handler; apply the policies again")
	if out := again("kata"); strings.Contains(out, "Warning: ") {
		t.Errorf("creating the same class again has a warning: %s", out)
	}
	// Without the rules, untrusted pods are created again.
	b.kubectl(t, berth(t, 0, b.admin, "", "policy").stdout, "apply", "--server-side", "-f", "-")
	b.kubectl(t, "", "delete", "mutatingadmissionpolicybinding/berth-choose", "mutatingadmissionpolicy/berth-choose", "validatingadmissionpolicybinding/berth-classes", "validatingadmissionpolicy/berth-classes")
	sends(http.StatusCreated, `"name":"p"`)
}

// policyRights checks that an error names the missing right.
func policyRights(t *testing.T, b *bed) {
	b.annotated(t)
	b.removePolicies(t)
	has(t, berth(t, 1, b.guest, "", "policy").stderr, `cannot list resource "runtimeclasses"`)
	known := file(t, "handlers.yaml", inventory)
	made := file(t, "classes.yaml", berth(t, 0, b.guest, "", "generate", "--handlers", known).stdout)
	has(t, berth(t, 1, unreachable(t), "", "policy").stderr, "cannot reach the API server https://127.0.0.1:1: ")
	has(t, berth(t, 0, unreachable(t), "", "policy", "--classes", made).stdout, "name: berth-refuse\n")
}
