package capacity

import (
	"context"
	"errors"
	"fmt"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
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
