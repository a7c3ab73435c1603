package capacity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/containerd/log"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// askTimeout bounds each question for a right.
	askTimeout = 10 * time.Second
	// firstAsk and lastAsk bound how soon a server that did not answer is asked again.
	firstAsk, lastAsk = time.Second, 10 * time.Second
	// refusals are how often in a row a server has to refuse: one that has just started knows
	// neither service accounts nor roles for some seconds.
	refusals = 4
)

// rights are what Run and the election of who runs it by that lease need.
func rights(lease types.NamespacedName) []authorizationv1.ResourceAttributes {
	const group, leases = "coordination.k8s.io", "leases"
	all := []authorizationv1.ResourceAttributes{{Verb: "patch", Resource: "nodes", Subresource: "status"}}
	for _, verb := range []string{"list", "watch"} {
		all = append(all,
			authorizationv1.ResourceAttributes{Verb: verb, Resource: "nodes"},
			authorizationv1.ResourceAttributes{Verb: verb, Resource: "pods"},
			authorizationv1.ResourceAttributes{Verb: verb, Group: "node.k8s.io", Resource: "runtimeclasses"})
	}
	// Servers do not know the name of what is created.
	all = append(all, authorizationv1.ResourceAttributes{Verb: "create", Group: group, Resource: leases, Namespace: lease.Namespace})
	for _, verb := range []string{"get", "update"} {
		all = append(all, authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: leases, Namespace: lease.Namespace, Name: lease.Name})
	}
	return all
}

// CheckRights asks the server for all that is needed, and names what is missing: a
// watch that is refused would only be tried again, for ever. A server that does not answer
// is asked again until it does, or ctx is over: one who ends would be started again
// later than the server is back. So is one that refuses, for some seconds.
func CheckRights(ctx context.Context, client kubernetes.Interface, lease types.NamespacedName) error {
	refused := 0
	for wait := firstAsk; ; wait = min(2*wait, lastAsk) {
		err := askFor(ctx, client, rights(lease))
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if !answered(err) {
			refused = 0
		} else if refused++; refused == 1 {
			wait = firstAsk
		} else if refused == refusals {
			return err
		}
		log.G(ctx).WithError(err).Warn("Failed to get rights from the API server; will retry")
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// errMissing is the answer no.
var errMissing = errors.New("rights are missing; grant them as contrib/kubernetes/capacity.yaml does")

func askFor(ctx context.Context, client kubernetes.Interface, all []authorizationv1.ResourceAttributes) error {
	var missing []error
	for _, r := range all {
		allowed, err := ask(ctx, client, r)
		if err != nil {
			return fmt.Errorf("ask the API server for the right to %s: %w", said(r), err)
		}
		if !allowed {
			missing = append(missing, fmt.Errorf("may not %s", said(r)))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w:\n%w", errMissing, errors.Join(missing...))
	}
	return nil
}

func ask(ctx context.Context, client kubernetes.Interface, r authorizationv1.ResourceAttributes) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &r},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}

// answered says whether asking again would be answered in the same way: the server has
// refused, and is neither busy nor broken. Pure.
func answered(err error) bool {
	if errors.Is(err, errMissing) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
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
	if r.Name != "" {
		text += fmt.Sprintf(" named %q", r.Name)
	}
	return text
}
