package capacity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Only a server that says no ends a controller: one that is away is waited for.
func TestAnswered(t *testing.T) {
	reviews := schema.GroupResource{Group: authorizationv1.GroupName, Resource: "selfsubjectaccessreviews"}
	for _, c := range []struct {
		what string
		err  error
		want bool
	}{
		{"a right is missing", fmt.Errorf("%w: may not", errMissing), true},
		{"may not even ask", apierrors.NewForbidden(reviews, "", errors.New("none")), true},
		{"is not known", apierrors.NewUnauthorized("expired"), true},
		{"is busy", apierrors.NewTooManyRequests("wait", 1), false},
		{"breaks", apierrors.NewInternalError(errors.New("etcd is away")), false},
		{"is not there yet", apierrors.NewServiceUnavailable("starting"), false},
		{"refuses connections", errors.New("connection refused"), false},
		{"says nothing", context.DeadlineExceeded, false},
	} {
		if got := answered(fmt.Errorf("ask: %w", c.err)); got != c.want {
			t.Errorf("a server that %s has answered: %v", c.what, got)
		}
	}
}

// script is an API server that answers with some codes, and then grants all.
type script struct{ codes []int }

func (s *script) RoundTrip(*http.Request) (*http.Response, error) {
	code, body := http.StatusCreated, `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","status":{"allowed":true}}`
	if len(s.codes) > 0 {
		code, body = s.codes[0], ""
		s.codes = s.codes[1:]
	}
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: code, Header: header, Body: io.NopCloser(strings.NewReader(body))}, nil
}

// A server that has just started refuses what it grants a moment later.
func TestCheckRights(t *testing.T) {
	for _, c := range []struct {
		what   string
		codes  []int
		refuse bool
	}{
		{"grants", nil, false},
		{"starts", []int{503, 503, 401, 403, 403}, false},
		{"refuses", []int{403, 403, 403, 403}, true},
		{"is away between refusals", []int{403, 403, 503, 403, 403, 403}, false},
	} {
		server := &script{codes: c.codes}
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://starts", Transport: server})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Test(t, func(t *testing.T) {
			err := CheckRights(t.Context(), client, types.NamespacedName{Namespace: "berth-system", Name: "berth-controller"})
			if (err != nil) != c.refuse {
				t.Errorf("a server that %s: %v", c.what, err)
			}
			if len(server.codes) > 0 {
				t.Errorf("a server that %s was not asked again: %v are left", c.what, server.codes)
			}
		})
	}
}

// Rights to the one lease are enough, but a name cannot be part of the right to create it.
func TestRightsToTheLease(t *testing.T) {
	named := map[string]string{}
	for _, r := range rights(types.NamespacedName{Namespace: "berth-system", Name: "berth-controller"}) {
		if r.Resource == "leases" {
			named[r.Verb] = r.Name
		}
	}
	for verb, want := range map[string]string{"create": "", "get": "berth-controller", "update": "berth-controller"} {
		if got, asked := named[verb]; !asked || got != want {
			t.Errorf("%s is asked for %q: %v, want %q", verb, got, asked, want)
		}
	}
}
