// Package runtimeclass holds what pkg/runtimeclass says about RuntimeClasses and pods
// against what a real API server says, word for word, for every fixture that the
// package has.
package runtimeclass

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/integration/kubelet"
	"github.com/berth-cri/berth/pkg/runtimeclass"
)

const fixtures = "../../pkg/runtimeclass/testdata"

// TestFixtures shares one server.
func TestFixtures(t *testing.T) {
	// What else changes or refuses pods would hide what this is about.
	server := kubelet.StartServer(t, "--disable-admission-plugins=ServiceAccount,DefaultTolerationSeconds,Priority,LimitRanger")
	for dir, check := range map[string]func(*testing.T, *kubelet.Server, string){"lint": lint, "simulate": simulate} {
		files, err := filepath.Glob(filepath.Join(fixtures, dir, "*.yaml"))
		if err != nil || len(files) == 0 {
			t.Fatalf("there are no fixtures in %s: %v", dir, err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, ".live.yaml") {
				t.Run(dir+"/"+filepath.Base(file), func(t *testing.T) { check(t, server, file) })
			}
		}
	}
}

// document is one of a file, as it is written, with what is in it.
type document struct {
	text    []byte
	objects []runtimeclass.Object
}

func documents(t *testing.T, file string) []document {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []document
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		objects, err := runtimeclass.Parse(filepath.Base(file), []byte(part))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, document{[]byte(part), objects})
	}
	return all
}

// bodies are the objects of the document to send: as they are written, save those of
// lists.
func (d document) bodies(t *testing.T) [][]byte {
	t.Helper()
	if len(d.objects) == 1 && d.objects[0].Path == "" {
		return [][]byte{d.text}
	}
	var all [][]byte
	for _, o := range d.objects {
		all = append(all, encoded(t, o.Class.RuntimeClass))
	}
	return all
}

func encoded(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func decoded[T any](t *testing.T, text []byte) *T {
	t.Helper()
	into := new(T)
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return into
}

const classes = "/apis/node.k8s.io/v1/runtimeclasses"

// lint sends each class in its order, and compares the answer with the findings.
func lint(t *testing.T, server *kubelet.Server, file string) {
	defer func() {
		if status, answer := server.Send(t, http.MethodDelete, classes, nil); status != http.StatusOK {
			t.Errorf("delete the classes: %d: %s", status, answer)
		}
	}()
	live := map[string]*nodev1.RuntimeClass{}
	var before []runtimeclass.Class
	if old := strings.TrimSuffix(file, ".yaml") + ".live.yaml"; exists(old) {
		for _, d := range documents(t, old) {
			status, answer := server.Send(t, http.MethodPost, classes, d.text)
			if status != http.StatusCreated {
				t.Fatalf("create: %d: %s", status, answer)
			}
			c := decoded[nodev1.RuntimeClass](t, answer)
			live[c.Name] = c
			before = append(before, runtimeclass.Classes(d.objects)...)
		}
	}
	var sent []runtimeclass.Class
	for _, d := range documents(t, file) {
		for i, body := range d.bodies(t) {
			o := d.objects[i]
			sent = append(sent, *o.Class)
			all := runtimeclass.Lint(sent, runtimeclass.LintOptions{Live: before})
			earlier := runtimeclass.Lint(sent[:len(sent)-1], runtimeclass.LintOptions{Live: before})
			method, path := http.MethodPost, "/apis/"+o.APIVersion+"/runtimeclasses"
			if old := live[o.Name]; old != nil {
				o.Class.ResourceVersion = old.ResourceVersion
				method, path, body = http.MethodPut, path+"/"+o.Name, encoded(t, o.Class.RuntimeClass)
			}
			status, answer := server.Send(t, method, path+"?fieldValidation=Strict", body)
			compare(t, o, all[len(earlier):], status, answer)
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
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
	said := decoded[metav1.Status](t, answer)
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

// simulate creates the classes, sends the pods, and compares what comes back.
func simulate(t *testing.T, server *kubelet.Server, file string) {
	var known []runtimeclass.Class
	pods := 0
	for _, d := range documents(t, file) {
		for i, o := range d.objects {
			body := d.bodies(t)[i]
			if o.Class != nil {
				known = append(known, *o.Class)
				if status, answer := server.Send(t, http.MethodPost, classes, body); status != http.StatusCreated && status != http.StatusConflict {
					t.Fatalf("create %s: %d: %s", o, status, answer)
				}
				continue
			}
			if o.Kind != "Pod" {
				body = encoded(t, o.Pod.Pod)
			}
			pods++
			status, answer := server.Send(t, http.MethodPost, "/api/v1/namespaces/default/pods?dryRun=All&fieldValidation=Strict", body)
			a := runtimeclass.Admit(o.Pod.Pod, known)
			if a.Rejection != "" {
				if said := decoded[metav1.Status](t, answer).Message; status < http.StatusBadRequest || said != a.Rejection {
					t.Errorf("%s: the server answers %d\n%s\nand we\n%s", o.Pod.Owner, status, said, a.Rejection)
				}
				continue
			}
			if status != http.StatusCreated {
				t.Errorf("%s: we admit it, and the server answers %d: %s", o.Pod.Owner, status, answer)
				continue
			}
			got, want := decoded[corev1.Pod](t, answer).Spec, a.Pod.Spec
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
