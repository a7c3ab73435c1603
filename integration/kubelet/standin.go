package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// leases is where nodes say that they live.
const leases = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"

// standInPeriod is how often a node without a kubelet is looked after. A node is
// taken for lost after 50 s.
const standInPeriod = time.Second

// Register registers a node behind which there is no kubelet: the scheduler may put
// pods on it, and nobody runs them. It is ready until the test ends, and pods that are
// deleted go.
func (c *Cluster) Register(t testbed.T, name string, capacity corev1.ResourceList) {
	t.Helper()
	now := metav1.Now()
	node := corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastHeartbeatTime: now, LastTransitionTime: now,
			}},
		},
	}
	seconds := int32(40)
	c.create(t, "/api/v1/nodes", node)
	c.create(t, leases, coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: now.Time}},
	})
	ctx, end := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { standIn{c, name}.run(ctx, t) })
	t.Cleanup(func() { end(); group.Wait() })
	testbed.Eventually(t, startTimeout, func() error {
		node, err := c.Node(name)
		if err != nil {
			return err
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("node %s is tainted: %+v", name, node.Spec.Taints)
		}
		return nil
	})
}

func (c *Cluster) create(t testbed.T, path string, object any) {
	t.Helper()
	body, err := json.Marshal(object)
	if err != nil {
		t.Fatalf("%v", err)
	}
	status, answer, err := c.send(t.Context(), http.MethodPost, path, "application/json", body)
	if err != nil || status != http.StatusCreated {
		t.Fatalf("POST %s: %d: %s: %v", path, status, answer, err)
	}
}

// standIn is what stands in for the kubelet of a node.
type standIn struct {
	cluster *Cluster
	node    string
}

// run does what a kubelet has to do all the time.
func (s standIn) run(ctx context.Context, t testbed.T) {
	for {
		if err := errors.Join(s.renew(ctx), s.finish(ctx)); err != nil && ctx.Err() == nil {
			t.Logf("stand in for the kubelet of node %s: %v", s.node, err) // and try again
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(standInPeriod):
		}
	}
}

func (s standIn) renew(ctx context.Context) error {
	body := fmt.Sprintf(`{"spec":{"renewTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
	return s.must(ctx, http.MethodPatch, leases+"/"+s.node, "application/merge-patch+json", []byte(body))
}

// finish takes away the pods that are deleted, of which nothing ran.
func (s standIn) finish(ctx context.Context) error {
	var list corev1.PodList
	if err := s.cluster.get("/api/v1/pods?fieldSelector=spec.nodeName="+s.node, &list); err != nil {
		return err
	}
	var failures []error
	for _, pod := range list.Items {
		if pod.DeletionTimestamp != nil {
			path := "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name
			failures = append(failures, s.must(ctx, http.MethodDelete, path, "application/json", []byte(`{"gracePeriodSeconds":0}`)))
		}
	}
	return errors.Join(failures...)
}

func (s standIn) must(ctx context.Context, method, path, contentType string, body []byte) error {
	status, answer, err := s.cluster.send(ctx, method, path, contentType, body)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s %s: %d: %s", method, path, status, answer)
	}
	return err
}
