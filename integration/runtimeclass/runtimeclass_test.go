// Package runtimeclass compares the admission of pods by contrib/cluster/pkg/runtimeclass with that
// of a real API server, word for word.
package runtimeclass

import (
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/integration/fixtures"
	"github.com/berth-cri/berth/integration/kubelet"
)

// TestFixtures runs all fixtures against one server.
func TestFixtures(t *testing.T) {
	// Other admission plugins would change or refuse pods, too.
	server := kubelet.StartServer(t, "--disable-admission-plugins=ServiceAccount,DefaultTolerationSeconds,Priority,LimitRanger")
	for _, one := range fixtures.All(t, "admission") {
		t.Run(one.Name, func(t *testing.T) { admission(t, server, one) })
	}
}

const classes = "/apis/node.k8s.io/v1/runtimeclasses"

// admission creates a fixture's classes, sends its pods, and compares the answers with Admit.
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
					t.Errorf("%s: the server answers %d\n%s\nbut Admit\n%s", o.Pod.Owner, status, said, a.Rejection)
				}
				continue
			}
			if status != http.StatusCreated {
				t.Errorf("%s: Admit accepts the pod, but the server answers %d: %s", o.Pod.Owner, status, answer)
				continue
			}
			got, want := fixtures.Decoded[corev1.Pod](t, answer).Spec, a.Pod.Spec
			if !equality.Semantic.DeepEqual(got.Overhead, want.Overhead) || !equality.Semantic.DeepEqual(got.NodeSelector, want.NodeSelector) {
				t.Errorf("%s: the server sets overhead and selector\n%v %v\nbut Admit\n%v %v", o.Pod.Owner, got.Overhead, got.NodeSelector, want.Overhead, want.NodeSelector)
			}
		}
	}
	if pods == 0 {
		t.Error("the fixture has no pods")
	}
}
