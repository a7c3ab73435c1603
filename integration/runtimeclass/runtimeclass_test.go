// Package runtimeclass holds what pkg/runtimeclass says about RuntimeClasses and pods
// against what a real API server says, word for word, for every fixture that the
// package has.
package runtimeclass

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/integration/fixtures"
	"github.com/berth-cri/berth/integration/kubelet"
)

// TestFixtures shares one server.
func TestFixtures(t *testing.T) {
	// What else changes or refuses pods would hide what this is about.
	server := kubelet.StartServer(t, "--disable-admission-plugins=ServiceAccount,DefaultTolerationSeconds,Priority,LimitRanger")
	for dir, check := range map[string]func(*testing.T, *kubelet.Server, fixtures.Fixture){"lint": lint, "admission": admission} {
		for _, one := range fixtures.All(t, dir) {
			t.Run(dir+"/"+one.Name, func(t *testing.T) { check(t, server, one) })
		}
	}
}

const classes = "/apis/node.k8s.io/v1/runtimeclasses"

// lint sends each class in its order, and compares the answer with the findings.
func lint(t *testing.T, server *kubelet.Server, of fixtures.Fixture) {
	defer func() {
		if status, answer := server.Send(t, http.MethodDelete, classes, nil); status != http.StatusOK {
			t.Errorf("delete the classes: %d: %s", status, answer)
		}
	}()
	live := map[string]*nodev1.RuntimeClass{}
	var before []runtimeclass.Class
	for _, d := range of.Live(t) {
		status, answer := server.Send(t, http.MethodPost, classes, d.Text)
		if status != http.StatusCreated {
			t.Fatalf("create: %d: %s", status, answer)
		}
		c := fixtures.Decoded[nodev1.RuntimeClass](t, answer)
		live[c.Name] = c
		before = append(before, runtimeclass.Classes(d.Objects)...)
	}
	var sent []runtimeclass.Class
	for _, d := range of.Documents(t) {
		for i, body := range d.Bodies(t) {
			o := d.Objects[i]
			sent = append(sent, *o.Class)
			all := runtimeclass.Lint(sent, runtimeclass.LintOptions{Live: before})
			earlier := runtimeclass.Lint(sent[:len(sent)-1], runtimeclass.LintOptions{Live: before})
			method, path := http.MethodPost, "/apis/"+o.APIVersion+"/runtimeclasses"
			if old := live[o.Name]; old != nil {
				o.Class.ResourceVersion = old.ResourceVersion
				method, path, body = http.MethodPut, path+"/"+o.Name, fixtures.Encoded(t, o.Class.RuntimeClass)
			}
			status, answer := server.Send(t, method, path+"?fieldValidation=Strict", body)
			compare(t, o, all[len(earlier):], status, answer)
		}
	}
}

// compare holds the findings about one class against the answer to it.
func compare(t *testing.T, o runtimeclass.Object, findings []runtimeclass.Finding, status int, answer []byte) {
	t.Helper()
	want, messages := http.StatusCreated, []string(nil)
	rules := map[string]bool{}
	for _, f := range findings {
		if f.Severity != runtimeclass.Error {
			continue
		}
		rules[f.Rule] = true
		if f.Rule == runtimeclass.RuleInvalid || f.Rule == runtimeclass.RuleImmutable {
			messages = append(messages, f.Message)
		}
	}
	switch {
	case rules[runtimeclass.RuleVersion]:
		want = http.StatusNotFound
	case rules[runtimeclass.RuleInvalid], rules[runtimeclass.RuleImmutable]:
		want = http.StatusUnprocessableEntity
	case rules[runtimeclass.RuleDuplicate]:
		want = http.StatusConflict
	}
	if status == http.StatusOK && strings.Contains(string(answer), `"resourceVersion"`) {
		status = http.StatusCreated // it was changed instead
	}
	if status != want {
		t.Errorf("%s: the server answers %d, the findings ask for %d: %+v\n%s", o, status, want, findings, answer)
		return
	}
	if want != http.StatusUnprocessableEntity {
		return
	}
	said := fixtures.Decoded[metav1.Status](t, answer)
	var causes []string
	for _, c := range said.Details.Causes {
		causes = append(causes, c.Field+": "+c.Message)
	}
	slices.Sort(causes)
	slices.Sort(messages)
	if !slices.Equal(causes, messages) {
		t.Errorf("%s: the server says\n%s\nand we\n%s", o, strings.Join(causes, "\n"), strings.Join(messages, "\n"))
	}
	if rules[runtimeclass.RuleInvalid] {
		if whole := runtimeclass.Invalid(o.Class.RuntimeClass, runtimeclass.Validate(o.Class.RuntimeClass)); len(causes) == 1 && said.Message != whole {
			t.Errorf("%s: the server says\n%s\nand we\n%s", o, said.Message, whole)
		}
	}
}

// admission creates the classes, sends the pods, and compares what comes back.
func admission(t *testing.T, server *kubelet.Server, of fixtures.Fixture) {
	var known []runtimeclass.Class
	pods := 0
	for _, d := range of.Documents(t) {
		for i, o := range d.Objects {
			body := d.Bodies(t)[i]
			if o.Class != nil {
				known = append(known, *o.Class)
				if status, answer := server.Send(t, http.MethodPost, classes, body); status != http.StatusCreated && status != http.StatusConflict {
					t.Fatalf("create %s: %d: %s", o, status, answer)
				}
				continue
			}
			if o.Kind != "Pod" {
				body = fixtures.Encoded(t, o.Pod.Pod)
			}
			pods++
			status, answer := server.Send(t, http.MethodPost, "/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict", body)
			a := runtimeclass.Admit(o.Pod.Pod, known)
			if a.Rejection != "" {
				if said := fixtures.Decoded[metav1.Status](t, answer).Message; status < http.StatusBadRequest || said != a.Rejection {
					t.Errorf("%s: the server answers %d\n%s\nand we\n%s", o.Pod.Owner, status, said, a.Rejection)
				}
				continue
			}
			if status != http.StatusCreated {
				t.Errorf("%s: we admit it, and the server answers %d: %s", o.Pod.Owner, status, answer)
				continue
			}
			got, want := fixtures.Decoded[corev1.Pod](t, answer).Spec, a.Pod.Spec
			if !equality.Semantic.DeepEqual(got.Overhead, want.Overhead) || !equality.Semantic.DeepEqual(got.NodeSelector, want.NodeSelector) ||
				!equality.Semantic.DeepEqual(got.Tolerations, want.Tolerations) {
				t.Errorf("%s: the server makes of it\n%v %v %v\nand we\n%v %v %v", o.Pod.Owner,
					got.Overhead, got.NodeSelector, got.Tolerations, want.Overhead, want.NodeSelector, want.Tolerations)
			}
		}
	}
	if pods == 0 {
		t.Error("no pod found in it")
	}
}
