// Package policy creates the policies of contrib/cluster/pkg/policy on a real API server, and
// compares the server's answers to pods with the verdicts of fit.
package policy

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-cri/berth/contrib/cluster/pkg/policy"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/integration/fixtures"
	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

const (
	classesPath = "/apis/node.k8s.io/v1/runtimeclasses"
	podPath     = "/api/v1/namespaces/default/pods"
	podsPath    = podPath + "?dryRun=All&fieldValidation=Strict"
	patience    = time.Minute
)

// bed is an API server. times counts how often policies were created there.
type bed struct {
	*kubelet.Server
	times int
}

// TestPolicy runs all subtests against one server, without the admission plugins that would also
// change or refuse the pods.
func TestPolicy(t *testing.T) {
	b := &bed{Server: kubelet.StartServer(t, "--disable-admission-plugins=ServiceAccount,DefaultTolerationSeconds,Priority,LimitRanger")}
	for _, one := range fixtures.All(t, "fit") {
		t.Run("Fit/"+strings.TrimSuffix(one.Name, ".yaml"), func(t *testing.T) { b.fit(t, one) })
	}
	t.Run("Unchosen", b.unchosen)
	t.Run("Debug", b.debug)
	t.Run("Choose", b.choose)
	t.Run("Workloads", b.workloads)
	t.Run("Large", b.large)
	t.Run("Many", b.many)
	t.Run("Controllers", b.controllers)
	t.Run("Scripts", b.scripts)
}

// classes creates these classes, and a class for each handler that has none.
func (b *bed) classes(t *testing.T, all []runtimeclass.Class, handlers []runtimeclass.Handler) []runtimeclass.Class {
	t.Helper()
	has := map[string]bool{}
	for _, c := range all {
		has[c.Handler] = true
	}
	for _, h := range handlers {
		if !has[h.Name] {
			all = append(all, runtimeclass.Class{Version: "v1", RuntimeClass: &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "of-" + h.Name}, Handler: h.Name}})
		}
	}
	for _, c := range all {
		if status, answer := b.Send(t, http.MethodPost, classesPath, fixtures.Encoded(t, c.RuntimeClass)); status != http.StatusCreated {
			t.Fatalf("create RuntimeClass %s: %d: %s", c.Name, status, answer)
		}
	}
	t.Cleanup(func() {
		if status, answer := b.Send(t, http.MethodDelete, classesPath, nil); status != http.StatusOK {
			t.Errorf("delete the classes: %d: %s", status, answer)
		}
	})
	return all
}

const policiesPath = "/apis/admissionregistration.k8s.io/v1/"

// inForce creates policies, and waits until the server applies those that validate pods. For that,
// each of these gets one more validation, which fails for a pod with a certain label.
func (b *bed) inForce(t *testing.T, o policy.Options) {
	t.Helper()
	all, err := policy.Generate(o)
	testbed.Must(t, err)
	b.times++
	marker := fmt.Sprintf("generation-%d", b.times)
	var validating []string
	for _, one := range all {
		if p, ok := one.(*admissionv1.ValidatingAdmissionPolicy); ok && p.Name != policy.Workloads && p.Name != policy.Classes {
			validating = append(validating, p.Name)
			p.Spec.Validations = append(p.Spec.Validations, admissionv1.Validation{
				Expression: fmt.Sprintf("object.metadata.?labels[?'marker'].orValue('') != '%s'", p.Name+marker), Message: "in force: " + p.Name + marker,
			})
		}
	}
	b.send(t, all)
	for _, name := range validating {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"marker": name + marker}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		testbed.Eventually(t, patience, func() error {
			status, answer, warnings := b.SendWarned(t, http.MethodPost, podsPath, fixtures.Encoded(t, pod))
			if !strings.Contains(string(answer)+strings.Join(warnings, ""), "in force: "+name+marker) {
				return fmt.Errorf("the policy %s is not applied yet: %d, %v: %s", name, status, warnings, answer)
			}
			return nil
		})
	}
}

// send creates objects, and removes them when the test ends.
func (b *bed) send(t *testing.T, all []runtime.Object) {
	t.Helper()
	sent, err := policy.Unstructured(all)
	testbed.Must(t, err)
	for _, fields := range sent {
		one := unstructured.Unstructured{Object: fields}
		path := policiesPath + strings.ToLower(strings.TrimSuffix(one.GetKind(), "y"))
		if strings.HasSuffix(one.GetKind(), "Policy") {
			path += "ies"
		} else {
			path += "s"
		}
		status, answer := b.Send(t, http.MethodPost, path+"?fieldValidation=Strict", fixtures.Encoded(t, fields))
		if status != http.StatusCreated {
			t.Fatalf("create %s %s: %d: %s", one.GetKind(), one.GetName(), status, answer)
		}
		t.Cleanup(func() {
			if status, answer := b.Send(t, http.MethodDelete, path+"/"+one.GetName(), nil); status != http.StatusOK {
				t.Errorf("delete %s %s: %d: %s", one.GetKind(), one.GetName(), status, answer)
			}
		})
	}
}

func pods(objects []runtimeclass.Object) (all []runtimeclass.Pod) {
	for _, o := range objects {
		if o.Pod != nil {
			all = append(all, *o.Pod)
		}
	}
	return all
}

// fit sends each pod of a fixture as it is, and with each class. The policies know the default
// handler of pods without a class.
func (b *bed) fit(t *testing.T, one fixtures.Fixture) {
	all, handlers := one.Objects(t), one.Inventory(t)
	classes := b.classes(t, runtimeclass.Classes(all), handlers)
	b.inForce(t, policy.Options{Classes: classes, Handlers: handlers, Default: defaultOf(handlers), State: true, Workloads: policy.WarnWorkloads})
	for _, of := range pods(all) {
		b.sameVerdict(t, of.Owner, of.Pod, handlers, classes, true)
		for _, c := range classes {
			with := of.DeepCopy()
			with.Spec.RuntimeClassName = &c.Name
			b.sameVerdict(t, of.Owner+" of class "+c.Name, with, handlers, classes, true)
		}
	}
}

// unchosen sends pods as they are, to policies that do not know the default handler.
func (b *bed) unchosen(t *testing.T) {
	node := fixtures.Of("fit", "node.yaml")
	all, handlers := node.Objects(t), node.Inventory(t)
	classes := b.classes(t, runtimeclass.Classes(all), handlers)
	b.inForce(t, policy.Options{Classes: classes, Handlers: handlers, State: true, Workloads: policy.WarnWorkloads})
	for _, of := range pods(all) {
		b.sameVerdict(t, of.Owner, of.Pod, handlers, classes, false)
	}
}

func defaultOf(handlers []runtimeclass.Handler) string {
	for _, h := range handlers {
		if h.Default {
			return h.Name
		}
	}
	return ""
}

// ofCluster turns a verdict of fit, which is about one node's handlers, into that of the policies,
// which hold for all nodes. Another node may support what a probe did not find on this one;
// nodes ignore sysctls that they do not support; and if the policies do not know the default
// handler, nodes may have different ones. In these cases policies warn instead of refusing.
func ofCluster(v runtimeclass.Verdict, chosen bool) runtimeclass.Verdict {
	v.Missing = slices.Clone(v.Missing)
	if !chosen {
		v.TakesNoPods = ""
	}
	refused := v.TakesNoPods != "" || len(v.Places) > 0
	for i := range v.Missing {
		k, note := &v.Missing[i].Known, ""
		switch {
		case k.Answer != capability.No:
			continue
		case k.Source == capability.Probed:
			note = "the node that was asked answers no"
		case !chosen:
			note = "the default of the node that was asked does not"
		case v.Missing[i].Capability != capability.Sysctls:
			refused = true
			continue
		}
		if note != "" && k.Note != "" {
			note += ": "
		}
		*k = capability.Known{Answer: capability.Unknown, Note: note + k.Note}
	}
	switch {
	case refused:
		v.Fits = capability.No
	case len(v.Missing) > 0:
		v.Fits = capability.Unknown
	default:
		v.Fits = capability.Yes
	}
	return v
}

// withFields returns a pod as validating policies receive it: the server has set fields from the
// annotations for AppArmor.
func withFields(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name] == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault {
			c.SecurityContext = &corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}}
		}
	}
	return pod
}

// sameVerdict compares the server's answer to a pod with fit's verdict on the pod's handler. For
// "no" the pod must be refused for the same reasons, for "unknown" there is a warning, for "yes"
// neither. ofCluster adapts the verdict. chosen is whether the policies know the handler of pods
// without a class.
func (b *bed) sameVerdict(t *testing.T, name string, pod *corev1.Pod, handlers []runtimeclass.Handler, classes []runtimeclass.Class, chosen bool) {
	t.Helper()
	handler := ""
	if pod.Spec.RuntimeClassName == nil {
		handler = defaultOf(handlers)
	}
	for _, c := range classes {
		if pod.Spec.RuntimeClassName != nil && c.Name == *pod.Spec.RuntimeClassName {
			handler = c.Handler
		}
	}
	if pod.Name == "" {
		pod = pod.DeepCopy()
		pod.Name = strings.TrimSuffix(pod.GenerateName, "-")
	}
	status, answer, warnings := b.submit(t, pod)
	if handler == "" {
		if status != http.StatusForbidden || !strings.Contains(string(answer), "not found") {
			t.Errorf("%s: the class of the pod does not exist, but the server answers %d: %s", name, status, answer)
		}
		return
	}
	rejection := runtimeclass.Admit(withFields(pod), classes).Rejection
	var verdict runtimeclass.Verdict
	for _, h := range handlers {
		if h.Name == handler {
			verdict = ofCluster(runtimeclass.Fit(withFields(pod), h), chosen || pod.Spec.RuntimeClassName != nil)
		}
	}
	var ours []string
	for _, w := range warnings {
		if strings.Contains(w, "'berth-") {
			ours = append(ours, w)
		}
	}
	why := strings.Join(verdict.Reasons(), "; ")
	message := ""
	if status != http.StatusCreated {
		message = fixtures.Decoded[metav1.Status](t, answer).Message
	}
	switch {
	case rejection != "":
		if status < http.StatusBadRequest || message != rejection {
			t.Errorf("%s: fit answers %s, but the server %d\n%s", name, rejection, status, message)
		}
	case verdict.Fits == capability.No:
		want := fmt.Sprintf("pods %q is forbidden: ValidatingAdmissionPolicy 'berth-refuse' with binding 'berth-refuse' denied request: %s; ", pod.Name, why)
		if status != http.StatusForbidden || !strings.HasPrefix(message, want) {
			t.Errorf("%s: the server answers %d\n%s\nwant\n%s", name, status, message, want)
		}
	case verdict.Fits == capability.Unknown:
		want := "Validation failed for ValidatingAdmissionPolicy 'berth-warn' with binding 'berth-warn': " + why + "; "
		if status != http.StatusCreated || len(ours) != 1 || !strings.HasPrefix(ours[0], want) {
			t.Errorf("%s: the server answers %d: %s with the warnings\n%s\nwant\n%s", name, status, message, strings.Join(ours, "\n"), want)
		}
	default:
		if status != http.StatusCreated || len(ours) != 0 {
			t.Errorf("%s: fit answers yes, but the server %d: %s with the warnings %q", name, status, message, ours)
		}
	}
}

// submit creates a pod as a dry run. If it has ephemeral containers, the pod is created without
// them, and they are added as a dry run.
func (b *bed) submit(t *testing.T, pod *corev1.Pod) (status int, answer []byte, warnings []string) {
	t.Helper()
	if len(pod.Spec.EphemeralContainers) == 0 {
		return b.SendWarned(t, http.MethodPost, podsPath, fixtures.Encoded(t, pod))
	}
	before := pod.DeepCopy()
	before.Spec.EphemeralContainers = nil
	if status, answer, warnings = b.SendWarned(t, http.MethodPost, podPath, fixtures.Encoded(t, before)); status != http.StatusCreated {
		return status, answer, warnings
	}
	defer b.remove(t, pod.Name)
	now := fixtures.Decoded[corev1.Pod](t, answer)
	now.Spec.EphemeralContainers = pod.Spec.EphemeralContainers
	if status, answer, warnings = b.SendWarned(t, http.MethodPut, podPath+"/"+pod.Name+"/ephemeralcontainers?dryRun=All&fieldValidation=Strict", fixtures.Encoded(t, now)); status == http.StatusOK {
		status = http.StatusCreated
	}
	return status, answer, warnings
}

func (b *bed) remove(t *testing.T, pod string) {
	t.Helper()
	if status, answer := b.Send(t, http.MethodDelete, podPath+"/"+pod+"?gracePeriodSeconds=0", nil); status != http.StatusOK {
		t.Errorf("delete pod %s: %d: %s", pod, status, answer)
	}
}

// debug adds ephemeral containers to a pod that existed before the policies, and that these would
// refuse. The policies check only the added container.
func (b *bed) debug(t *testing.T) {
	classes := b.furnish(t)
	const pod = podPath + "/there"
	if status, answer := b.Send(t, http.MethodPost, podPath, []byte(aPod("there", "  runtimeClassName: kata\n  hostNetwork: true\n  initContainers: [{name: i, image: i, securityContext: {privileged: true}}]\n"))); status != http.StatusCreated {
		t.Fatalf("create the pod: %d: %s", status, answer)
	}
	defer b.remove(t, "there")
	add := func(name string, c corev1.EphemeralContainerCommon) (int, string) {
		_, answer := b.Send(t, http.MethodGet, pod, nil)
		now := fixtures.Decoded[corev1.Pod](t, answer)
		c.Name, c.Image, c.TerminationMessagePolicy, c.ImagePullPolicy = name, "i", corev1.TerminationMessageReadFile, corev1.PullAlways
		now.Spec.EphemeralContainers = append(now.Spec.EphemeralContainers, corev1.EphemeralContainer{EphemeralContainerCommon: c})
		status, answer, warnings := b.SendWarned(t, http.MethodPut, pod+"/ephemeralcontainers", fixtures.Encoded(t, now))
		if status != http.StatusOK {
			return status, fixtures.Decoded[metav1.Status](t, answer).Message
		}
		return status, strings.Join(warnings, "\n")
	}
	privileged := corev1.EphemeralContainerCommon{SecurityContext: &corev1.SecurityContext{Privileged: new(true)}}
	if status, told := add("before", privileged); status != http.StatusOK || told != "" {
		t.Fatalf("add a container before the policies: %d: %s", status, told)
	}
	b.inForce(t, policy.Options{Classes: classes, Handlers: handlers(t), Default: "runc", Workloads: policy.IgnoreWorkloads})
	if status, told := add("plain", corev1.EphemeralContainerCommon{}); status != http.StatusOK || told != "" {
		t.Errorf("add a plain container: %d: %s, want no warning", status, told)
	}
	const why = `pods "there" is forbidden: ValidatingAdmissionPolicy 'berth-refuse' with binding 'berth-refuse' denied request: spec.ephemeralContainers[2].securityContext.privileged: true needs privileged, but the handler does not support it; use a class that supports it: gvisor`
	if status, told := add("privileged", privileged); status != http.StatusForbidden || told != why {
		t.Errorf("add a privileged container: %d: %s, want a refusal", status, told)
	}
	kubectl := exec.CommandContext(t.Context(), testbed.Part(t, testbed.Kubectl), "debug", "there", "--image=i", "--profile=sysadmin")
	kubectl.Env = append(os.Environ(), "KUBECONFIG="+b.Kubeconfig(t, kubelet.Admin, ""), "HOME="+t.TempDir())
	if out, err := kubectl.CombinedOutput(); err == nil || !strings.Contains(string(out), "'berth-refuse' denied request: spec.ephemeralContainers[2].securityContext.privileged: true needs privileged, but the handler does not support it") {
		t.Errorf("add a privileged container by kubectl debug: %v: %s, want a refusal", err, out)
	}
}

// handlers returns handlers of three isolations, which support everything except what is set below.
func handlers(t *testing.T) []runtimeclass.Handler {
	t.Helper()
	all := []runtimeclass.Handler{{Name: "runc", Default: true}, {Name: "gvisor"}, {Name: "kata"}}
	for i, isolation := range []capability.Isolation{capability.SharedKernel, capability.UserSpaceKernel, capability.VM} {
		all[i].Isolation = isolation
		for _, name := range runtimeclass.Asked() {
			all[i].Set(name, capability.Yes, capability.Ran, "")
		}
		if isolation != capability.SharedKernel {
			all[i].Set(capability.HostNetwork, capability.No, capability.Declared, "a kernel of its own")
		}
	}
	all[2].Set(capability.Privileged, capability.No, capability.Declared, "")
	all[2].Set(capability.Exec, capability.Unknown, "", "")
	all[2].Set(capability.UserNamespaces, capability.No, capability.Declared, "")
	return all
}

// furnish creates namespaces, and a class for each handler, with overhead and a node selector.
func (b *bed) furnish(t *testing.T) []runtimeclass.Class {
	t.Helper()
	var all []runtimeclass.Class
	for _, h := range handlers(t) {
		c, _ := runtimeclass.Generate(h, runtimeclass.GenerateOptions{})
		c.Overhead = &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("10Mi")}}
		all = append(all, runtimeclass.Class{Version: "v1", RuntimeClass: c})
	}
	for name, labels := range map[string]map[string]string{"strangers": {"trust": "untrusted"}, "ci": nil, "exempt": {"trust": "untrusted"}} {
		body := fixtures.Encoded(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
		if status, answer := b.Send(t, http.MethodPost, "/api/v1/namespaces", body); status != http.StatusCreated && status != http.StatusConflict {
			t.Fatalf("create namespace %s: %d: %s", name, status, answer)
		}
	}
	return b.classes(t, all, nil)
}

// aPod is a pod named name, with more fields in its spec.
func aPod(name, more string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", labels: {app: " + name + "}}\nspec:\n  containers: [{name: c, image: i}]\n" + more
}

const rules = `rules:
- name: floored
  pods: {labels: {app: floored}}
  isolation: strongest
  least: user-space-kernel
- name: host-network
  pods: {asks: [host-network]}
  isolation: shared-kernel
- name: untrusted
  namespaces: {labels: {trust: untrusted}}
  isolation: strongest
- name: build
  namespaces: {names: [ci]}
  pods: {labels: {app: build}}
  class: gvisor
`

func (b *bed) choose(t *testing.T) {
	classes := b.furnish(t)
	parsed, err := policy.ParseRules("rules.yaml", []byte(rules))
	testbed.Must(t, err)
	// The policies are generated from the annotations of the classes only.
	b.inForce(t, policy.Options{Classes: classes, Rules: parsed, Workloads: policy.IgnoreWorkloads, Exempt: []string{"exempt"}})
	send := func(namespace, body string) (*corev1.Pod, string) {
		status, answer := b.Send(t, http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods?dryRun=All", []byte(body))
		if status != http.StatusCreated {
			return nil, fixtures.Decoded[metav1.Status](t, answer).Message
		}
		return fixtures.Decoded[corev1.Pod](t, answer), ""
	}
	testbed.Eventually(t, patience, func() error {
		if pod, refused := send("strangers", aPod("p", "")); pod == nil || pod.Spec.RuntimeClassName == nil {
			return fmt.Errorf("no class is chosen yet: %s", refused)
		}
		return nil
	})
	// Other policies mutate pods before or after berth's; the order is unknown. If berth's is not the
	// last one, a pod without a class is better than one with a class that does not fit.
	others := []string{"a", "b", "c", "d"}
	for _, name := range others {
		b.others(t, name)
	}
	const mirror = "  nodeName: node\n"
	for _, c := range []struct{ what, namespace, pod, class, refused string }{
		{"untrusted", "strangers", aPod("p", ""), "kata", ""},
		{"untrusted and privileged, which kata does not support", "strangers", aPod("p", "  initContainers: [{name: i, image: i, securityContext: {privileged: true}}]\n"), "gvisor", ""},
		{"untrusted with an exec probe, which kata may not support", "strangers", strings.Replace(aPod("p", ""), "image: i", "image: i, livenessProbe: {exec: {command: [x]}}", 1), "kata", ""},
		{"with the host's network", "strangers", aPod("p", "  hostNetwork: true\n"), "runc", ""},
		{"untrusted with a user namespace, which is no reason for a weaker class", "strangers", aPod("p", "  hostUsers: false\n"), "", "spec.hostUsers: false needs user-namespaces, but the handler does not support it; use a class that supports it: gvisor"},
		{"untrusted with a user namespace and privileged", "strangers", strings.Replace(aPod("p", "  hostUsers: false\n"), "image: i", "image: i, securityContext: {privileged: true}", 1), "gvisor", ""},
		{"with least", "default", strings.Replace(aPod("floored", ""), "image: i", "image: i, securityContext: {privileged: true}", 1), "gvisor", ""},
		{"with least, and needing less isolation", "default", aPod("floored", "  hostNetwork: true\n"), "", "spec.hostNetwork: true needs host-network, but the handler does not support it: a kernel of its own; no class with the same or stronger isolation supports it"},
		{"of another namespace", "default", aPod("p", ""), "", ""},
		{"for Windows", "strangers", aPod("p", "  os: {name: windows}\n"), "", ""},
		{"without containers", "strangers", "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {}\n", "", "spec.containers: Required value"},
		{"to build", "ci", aPod("build", ""), "gvisor", ""},
		{"not to build", "ci", aPod("p", ""), "", ""},
		{"with a class", "strangers", aPod("p", "  runtimeClassName: runc\n"), "runc", ""},
		{"with a class that does not support it", "strangers", aPod("p", "  runtimeClassName: kata\n  hostNetwork: true\n"), "", "spec.hostNetwork: true needs host-network, but the handler does not support it: a kernel of its own; no class with the same or stronger isolation supports it"},
		{"to build with the host's network, chosen by the first rule", "ci", aPod("build", "  hostNetwork: true\n"), "runc", ""},
		{"of a namespace that is exempt", "exempt", aPod("p", ""), "", ""},
		{"of a namespace that is exempt, with a class that does not support it", "exempt", aPod("p", "  runtimeClassName: kata\n  hostNetwork: true\n"), "kata", ""},
		{"static pod", "strangers", strings.Replace(aPod("p", mirror), "labels:", "annotations: {kubernetes.io/config.mirror: x}, labels:", 1), "", ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			pod, refused := send(c.namespace, c.pod)
			if pod == nil || c.refused != "" {
				if c.refused == "" || !strings.HasSuffix(refused, c.refused) {
					t.Fatalf("the pod is refused with %q, want %q", refused, c.refused)
				}
				return
			}
			got := ""
			if pod.Spec.RuntimeClassName != nil {
				got = *pod.Spec.RuntimeClassName
			}
			testbed.Same(t, got, c.class, "the class of the pod is")
			whole(t, pod, got)
		})
	}
	for _, name := range others {
		t.Run("mutated by others/"+name, func(t *testing.T) {
			pod, refused := send("default", aPod(name, ""))
			if pod == nil {
				t.Fatalf("the pod is refused: %s", refused)
			}
			got := ""
			if pod.Spec.RuntimeClassName != nil {
				got = *pod.Spec.RuntimeClassName
			}
			if got != "" && got != "runc" {
				t.Errorf("the pod has the class %q, want runc or none", got)
			}
			whole(t, pod, got)
		})
	}
}

// whole fails unless a pod has the overhead and the node selector of its class, if it has one.
func whole(t *testing.T, pod *corev1.Pod, class string) {
	t.Helper()
	if memory := pod.Spec.Overhead.Memory().String(); (memory == "10Mi") != (class != "") || (len(pod.Spec.NodeSelector) == 1) != (class != "") {
		t.Errorf("the pod of class %q has the overhead %s and the selector %v", class, memory, pod.Spec.NodeSelector)
	}
}

// others creates another program's policy, which gives the host's network to pods whose label app
// is the policy's name.
func (b *bed) others(t *testing.T, name string) {
	t.Helper()
	fail := admissionv1.Fail
	meta := metav1.ObjectMeta{Name: name}
	b.send(t, []runtime.Object{
		&admissionv1.MutatingAdmissionPolicy{
			TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingAdmissionPolicy"}, ObjectMeta: meta,
			Spec: admissionv1.MutatingAdmissionPolicySpec{
				MatchConstraints: &admissionv1.MatchResources{
					ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
					ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
						Operations: []admissionv1.OperationType{admissionv1.Create},
						Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
					}}},
				},
				FailurePolicy: &fail, ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
				Mutations: []admissionv1.Mutation{{
					PatchType:          admissionv1.PatchTypeApplyConfiguration,
					ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: "Object{spec: Object.spec{hostNetwork: true}}"},
				}},
			},
		},
		&admissionv1.MutatingAdmissionPolicyBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "MutatingAdmissionPolicyBinding"}, ObjectMeta: meta,
			Spec: admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name},
		},
	})
	testbed.Eventually(t, patience, func() error {
		status, answer := b.Send(t, http.MethodPost, "/api/v1/namespaces/exempt/pods?dryRun=All", []byte(aPod(name, "")))
		if status != http.StatusCreated || !fixtures.Decoded[corev1.Pod](t, answer).Spec.HostNetwork {
			return fmt.Errorf("the policy %s is not applied yet: %d: %s", name, status, answer)
		}
		return nil
	})
}

// workloads checks the warnings for workloads, which are about the class that their pods will get.
func (b *bed) workloads(t *testing.T) {
	classes := b.furnish(t)
	parsed, err := policy.ParseRules("rules.yaml", []byte(rules))
	testbed.Must(t, err)
	kinds := map[string]string{
		"apps/v1/deployments": "Deployment", "apps/v1/statefulsets": "StatefulSet", "apps/v1/daemonsets": "DaemonSet", "apps/v1/replicasets": "ReplicaSet",
		"batch/v1/jobs": "Job", "batch/v1/cronjobs": "CronJob", "v1/replicationcontrollers": "ReplicationController",
	}
	send := func(method, resource, namespace, spec, meta, name, query string) (int, string) {
		version, plural := resource[:strings.LastIndexByte(resource, '/')], resource[strings.LastIndexByte(resource, '/')+1:]
		path := "/apis/" + version
		if version == "v1" {
			path = "/api/v1"
		}
		restart := ""
		if strings.HasPrefix(resource, "batch/") {
			restart = "restartPolicy: Never, "
		}
		template := fmt.Sprintf("{metadata: {labels: {app: x}}, spec: {%scontainers: [{name: c, image: i}], %s}}", restart, spec)
		body := fmt.Sprintf("{selector: {matchLabels: {app: x}}, serviceName: x, template: %s}", template)
		switch plural {
		case "jobs":
			body = fmt.Sprintf("{template: %s}", template)
		case "cronjobs":
			body = fmt.Sprintf("{schedule: '0 0 * * *', jobTemplate: {spec: {template: %s}}}", template)
		case "replicationcontrollers":
			body = fmt.Sprintf("{selector: {app: x}, template: %s}", template)
		}
		path += "/namespaces/" + namespace + "/" + plural
		if method == http.MethodPut {
			path += "/" + name
		}
		status, answer, warnings := b.SendWarned(t, method, path+query, fmt.Appendf(nil, "apiVersion: %s\nkind: %s\nmetadata: {name: %s%s}\nspec: %s\n", version, kinds[resource], name, meta, body))
		return status, strings.Join(warnings, "\n") + string(answer)
	}
	b.inForce(t, policy.Options{Classes: classes, Rules: parsed, Workloads: policy.WarnWorkloads})
	const cannot = "runtimeClassName: kata, hostNetwork: true"
	const why = "spec.hostNetwork: true needs host-network, but the handler does not support it: a kernel of its own; no class with the same or stronger isolation supports it"
	const owned = ", ownerReferences: [{apiVersion: apps/v1, kind: Deployment, name: d, uid: 4c1d2f1e-0000-4000-8000-000000000000, controller: true}]"
	for resource := range kinds {
		testbed.Eventually(t, patience, func() error {
			if status, told := send(http.MethodPost, resource, "default", cannot, "", "x", "?dryRun=All"); status != http.StatusCreated || !strings.Contains(told, "'berth-workloads': "+why) {
				return fmt.Errorf("%s whose pods cannot run: %d: %s, want a warning", resource, status, told)
			}
			return nil
		})
		if status, told := send(http.MethodPost, resource, "default", "runtimeClassName: runc, hostNetwork: true", "", "x", "?dryRun=All"); status != http.StatusCreated || strings.Contains(told, "berth-workloads") {
			t.Errorf("%s whose pods can run: %d: %s, want no warning", resource, status, told)
		}
		// The pods will get kata, which may not support exec.
		const probed = "initContainers: [{name: i, image: i, restartPolicy: Always, livenessProbe: {exec: {command: [x]}}}]"
		if _, told := send(http.MethodPost, resource, "strangers", probed, "", "x", "?dryRun=All"); !strings.Contains(told, "spec.initContainers[0].livenessProbe.exec: x needs exec, but the handler may not support it") {
			t.Errorf("%s in the namespace strangers: %s, want a warning", resource, told)
		}
		if _, told := send(http.MethodPost, resource, "default", probed, "", "x", "?dryRun=All"); strings.Contains(told, "berth-workloads") {
			t.Errorf("%s for the default handler: %s, want no warning", resource, told)
		}
		if status, told := send(http.MethodPost, resource, "default", cannot, owned, "x", "?dryRun=All"); status != http.StatusCreated || strings.Contains(told, "berth-workloads") {
			t.Errorf("%s that has an owner: %d: %s, want no warning", resource, status, told)
		}
	}

	// An update without a change of the template has no warning.
	const deployments = "apps/v1/deployments"
	if status, told := send(http.MethodPost, deployments, "ci", cannot, "", "old", ""); status != http.StatusCreated {
		t.Fatalf("create a deployment: %d: %s", status, told)
	}
	t.Cleanup(func() { b.Send(t, http.MethodDelete, "/apis/apps/v1/namespaces/ci/deployments/old", nil) })
	if status, told := send(http.MethodPut, deployments, "ci", cannot, ", annotations: {a: b}", "old", ""); status != http.StatusOK || strings.Contains(told, "berth-workloads") {
		t.Errorf("update with the same template: %d: %s, want no warning", status, told)
	}
	if status, told := send(http.MethodPut, deployments, "ci", cannot+", hostPID: true", "", "old", ""); status != http.StatusOK || !strings.Contains(told, "berth-workloads") {
		t.Errorf("update with another template: %d: %s, want a warning", status, told)
	}
}

// large sends a pod near the largest that a server accepts: the policies' expressions stay below
// the cost limit, so that the refusal has its reason.
func (b *bed) large(t *testing.T) {
	classes := b.furnish(t)
	none := handlers(t)
	for i := range none {
		for _, name := range runtimeclass.Asked() {
			none[i].Set(name, capability.No, capability.Declared, "")
		}
	}
	b.inForce(t, policy.Options{Classes: classes, Handlers: none, Default: "runc", Workloads: policy.IgnoreWorkloads})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "large"}}
	for i := range 30 {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("v-%d", i), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	for i := range 300 {
		c := corev1.Container{Name: fmt.Sprintf("c-%d", i), Image: "registry.example/some/image:of-a-version", TerminationMessagePolicy: corev1.TerminationMessageReadFile}
		for j := range pod.Spec.Volumes {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: pod.Spec.Volumes[j].Name, MountPath: fmt.Sprintf("/mounted/here/%d", j)})
		}
		c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi"), corev1.ResourceCPU: resource.MustParse("1")}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	last := &pod.Spec.Containers[len(pod.Spec.Containers)-1]
	last.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"last"}}}}
	body := fixtures.Encoded(t, pod)
	status, answer := b.Send(t, http.MethodPost, podsPath, body)
	if message := fixtures.Decoded[metav1.Status](t, answer).Message; status != http.StatusForbidden || !strings.Contains(message, "spec.containers[299].livenessProbe.exec: last needs exec, but") {
		t.Errorf("a pod of %d bytes: %d: %.300s, want a refusal", len(body), status, message)
	}
	// A very large number of resources is refused as a whole.
	names := &strings.Builder{}
	for i := range 15_000 {
		fmt.Fprintf(names, "e.io/%d: 1,", i)
	}
	status, answer = b.Send(t, http.MethodPost, podsPath, []byte(strings.Replace(aPod("p", ""), "image: i", "image: i, resources: {limits: {"+names.String()+"}}", 1)))
	if message := fixtures.Decoded[metav1.Status](t, answer).Message; status != http.StatusForbidden || !strings.Contains(message, "spec.containers[0].resources.limits: more than 500 resources needs devices, but") {
		t.Errorf("a pod with many resources: %d: %.300s, want a refusal", status, message)
	}
}

// many creates policies for more classes and rules than a cluster has.
func (b *bed) many(t *testing.T) {
	b.furnish(t)
	var classes []runtimeclass.Class
	for i := range 40 {
		c, _ := runtimeclass.Generate(handlers(t)[i%3], runtimeclass.GenerateOptions{})
		c.Name = fmt.Sprintf("%s-%d", c.Name, i)
		classes = append(classes, runtimeclass.Class{Version: "v1", RuntimeClass: c})
	}
	classes = b.classes(t, classes, nil)
	text := "rules:\n"
	for i := range 100 {
		text += fmt.Sprintf("- {name: r-%d, pods: {labels: {number: n-%d}}, isolation: strongest}\n", i, i)
	}
	parsed, err := policy.ParseRules("rules.yaml", []byte(text))
	testbed.Must(t, err)
	b.inForce(t, policy.Options{Classes: classes, Rules: parsed, Default: "runc", Workloads: policy.DenyWorkloads})
	testbed.Eventually(t, patience, func() error {
		pod := strings.Replace(aPod("p", ""), "labels: {", "labels: {number: n-99, ", 1)
		status, answer := b.Send(t, http.MethodPost, podsPath, []byte(pod))
		if got := fixtures.Decoded[corev1.Pod](t, answer).Spec.RuntimeClassName; status != http.StatusCreated || got == nil || *got != "kata-11" {
			return fmt.Errorf("create a pod for the last rule: %d: %s, want the class kata-11", status, answer)
		}
		return nil
	})
}

// controllers starts the cluster's controllers. They report why they cannot create the pods of a
// workload that was created in spite of a warning, and find no type errors in the policies.
func (b *bed) controllers(t *testing.T) {
	classes := b.furnish(t)
	parsed, err := policy.ParseRules("rules.yaml", []byte(rules))
	testbed.Must(t, err)
	b.inForce(t, policy.Options{Classes: classes, Rules: parsed, Workloads: policy.WarnWorkloads, Exempt: []string{"exempt"}})
	b.StartControllers(t)
	const deployments = "/apis/apps/v1/namespaces/default/deployments"
	body := "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: refused}\nspec:\n  selector: {matchLabels: {a: b}}\n  template: {metadata: {labels: {a: b}}, spec: {runtimeClassName: kata, hostNetwork: true, containers: [{name: c, image: i}]}}\n"
	if status, answer := b.Send(t, http.MethodPost, deployments, []byte(body)); status != http.StatusCreated {
		t.Fatalf("create a deployment: %d: %s", status, answer)
	}
	t.Cleanup(func() { b.Send(t, http.MethodDelete, deployments+"/refused", nil) })
	const why = "denied request: spec.hostNetwork: true needs host-network, but the handler does not support it: a kernel of its own; no class with the same or stronger isolation supports it"
	testbed.Eventually(t, patience, func() error {
		_, answer := b.Send(t, http.MethodGet, deployments+"/refused", nil)
		for _, c := range fixtures.Decoded[appsv1.Deployment](t, answer).Status.Conditions {
			if c.Type == appsv1.DeploymentReplicaFailure && c.Status == corev1.ConditionTrue && strings.Contains(c.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("no condition of the deployment has the reason: %s", answer)
	})
	testbed.Eventually(t, patience, func() error {
		_, answer := b.Send(t, http.MethodGet, "/api/v1/namespaces/default/events", nil)
		for _, e := range fixtures.Decoded[corev1.EventList](t, answer).Items {
			if e.InvolvedObject.Kind == "ReplicaSet" && e.Reason == "FailedCreate" && strings.Contains(e.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("no event has the reason: %s", answer)
	})
	for _, name := range []string{policy.Refuse, policy.Warn, policy.Workloads, policy.Classes} {
		testbed.Eventually(t, patience, func() error {
			_, answer := b.Send(t, http.MethodGet, policiesPath+"validatingadmissionpolicies/"+name, nil)
			p := fixtures.Decoded[admissionv1.ValidatingAdmissionPolicy](t, answer)
			if p.Status.ObservedGeneration != p.Generation || p.Status.TypeChecking == nil {
				return fmt.Errorf("the types of %s are not checked yet", name)
			}
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				t.Errorf("%s: %s: %s", name, w.FieldRef, w.Warning)
			}
			return nil
		})
	}
}

// scripts checks warnings about commands with control characters, such as whole scripts with tabs
// and line ends. A server would not send a warning that contains one.
func (b *bed) scripts(t *testing.T) {
	classes := b.furnish(t)
	b.inForce(t, policy.Options{Classes: classes, Handlers: handlers(t), Default: "runc", Workloads: policy.WarnWorkloads})
	for text, told := range map[string]string{`x y`: "x y", `x\ny`: "x y", `x\ty`: "x y", `x\r\ny`: "x y", `x\u001by`: "x y", `x\u0085y`: "x y", `\tx\n`: " x"} {
		spec := `containers: [{name: c, image: i, livenessProbe: {exec: {command: ["` + text + `"]}}}]`
		for path, body := range map[string]string{
			podsPath: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {runtimeClassName: kata, " + spec + "}\n",
			"/apis/apps/v1/namespaces/default/deployments?dryRun=All": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {a: b}}\n" +
				"  template: {metadata: {labels: {a: b}}, spec: {runtimeClassName: kata, hostNetwork: true, " + spec + "}}\n",
		} {
			status, answer, warnings := b.SendWarned(t, http.MethodPost, path, []byte(body))
			if status != http.StatusCreated || len(warnings) != 1 || !strings.Contains(warnings[0], "exec: "+told+" needs exec") {
				t.Errorf("%s at %s: %d with the warnings %q, want one: %.200s", text, path, status, warnings, answer)
			}
		}
	}
}
