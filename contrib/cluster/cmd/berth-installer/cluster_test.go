package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-cri/berth/contrib/cluster/pkg/installer"
	"github.com/berth-cri/berth/internal/test"
)

// A missing right is reported with verb and resource, as an error that is not retried.
func TestForbidden(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: http.StatusForbidden,
			Reason: metav1.StatusReasonForbidden, Message: `nodes "node" is forbidden: User "x" cannot get resource "nodes"`,
		})
	}))
	defer h.Close()
	c := test.Value(clusterOf(&rest.Config{Host: h.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}, "/", "node"))(t)
	if err := c.Serves(t.Context(), true); !errors.Is(err, installer.ErrFinal) || !strings.Contains(err.Error(), `cannot get resource "nodes"`) {
		t.Errorf("got %v, want a final error with verb and resource", err)
	}
}

func TestServing(t *testing.T) {
	node := func(name string, ready core.ConditionStatus) *core.Node {
		n := &core.Node{}
		n.Status.NodeInfo.ContainerRuntimeVersion = name
		n.Status.Conditions = []core.NodeCondition{{Type: core.NodeReady, Status: ready, Message: "why"}}
		return n
	}
	for name, c := range map[string]struct {
		n     *core.Node
		berth bool
		wrong string
	}{
		"uses berth":             {node("berth://1.0.0", core.ConditionTrue), true, ""},
		"does not use berth yet": {node("containerd://2.4.2", core.ConditionTrue), true, "the node's runtime is containerd://2.4.2"},
		"uses berth, not ready":  {node("berth://1.0.0", core.ConditionFalse), true, "the node is not Ready: why"},
		"moved back":             {node("containerd://2.4.2", core.ConditionTrue), false, ""},
		"not moved back yet":     {node("berth://1.0.0", core.ConditionTrue), false, "the node's runtime is berth://1.0.0"},
		"moved back, not ready":  {node("cri-o://1.37", core.ConditionUnknown), false, "not Ready"},
	} {
		t.Run(name, func(t *testing.T) {
			err := serving(c.n, c.berth)
			if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}
