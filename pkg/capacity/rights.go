package capacity

import (
	"context"
	"errors"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// rights are what Run and the election of who runs it need.
func rights(namespace string) []authorizationv1.ResourceAttributes {
	all := []authorizationv1.ResourceAttributes{{Verb: "patch", Resource: "nodes", Subresource: "status"}}
	for _, verb := range []string{"list", "watch"} {
		all = append(all,
			authorizationv1.ResourceAttributes{Verb: verb, Resource: "nodes"},
			authorizationv1.ResourceAttributes{Verb: verb, Resource: "pods"},
			authorizationv1.ResourceAttributes{Verb: verb, Group: "node.k8s.io", Resource: "runtimeclasses"})
	}
	for _, verb := range []string{"get", "create", "update"} {
		all = append(all, authorizationv1.ResourceAttributes{Verb: verb, Group: "coordination.k8s.io", Resource: "leases", Namespace: namespace})
	}
	return all
}

// CheckRights asks the server for all that is needed, and names what is missing: a
// watch that is refused would only be tried again, for ever.
func CheckRights(ctx context.Context, client kubernetes.Interface, namespace string) error {
	var missing []error
	for _, r := range rights(namespace) {
		answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("ask the API server for the right to %s: %w", said(r), err)
		}
		if !answer.Status.Allowed {
			missing = append(missing, fmt.Errorf("may not %s", said(r)))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("rights are missing; grant them as contrib/kubernetes/capacity.yaml does:\n%w", errors.Join(missing...))
	}
	return nil
}

// said is a right as RBAC has it: `patch "nodes/status"`.
func said(r authorizationv1.ResourceAttributes) string {
	name := r.Resource
	if r.Subresource != "" {
		name += "/" + r.Subresource
	}
	text := fmt.Sprintf("%s %q", r.Verb, name)
	if r.Group != "" {
		text += " of " + r.Group
	}
	if r.Namespace != "" {
		text += fmt.Sprintf(" in namespace %q", r.Namespace)
	}
	return text
}
