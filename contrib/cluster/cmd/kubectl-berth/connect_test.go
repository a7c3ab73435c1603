package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// A list that has become too old between two of its pages is begun anew, and none of its objects
// is there twice.
func TestListBeginsAnew(t *testing.T) {
	gone := false
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch at := r.URL.Query().Get("continue"); {
		case at == "" && !gone:
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"x"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`)
		case at != "":
			gone = true
			w.WriteHeader(http.StatusGone)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)
		default:
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"b"}},{"metadata":{"name":"c"}}]}`)
		}
	}))
	defer api.Close()
	s, err := clients(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	pods, err := list[corev1.Pod](t.Context(), s, "pods", s.core.Pods("").List, metav1.ListOptions{})
	var names []string
	for i := range pods {
		names = append(names, pods[i].Name)
	}
	if err != nil || !slices.Equal(names, []string{"b", "c"}) {
		t.Errorf("%v; got %v", err, names)
	}
}
