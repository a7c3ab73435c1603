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

// leases is the API path of the nodes' leases, which kubelets renew.
const leases = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"

// standInPeriod is the time between two renewals of a lease. After 50 s without one, a node counts
// as lost.
const standInPeriod = time.Second

// Register registers a node without a kubelet. The scheduler may put pods on it, but they do not
// run. Until the test ends, the node stays ready, and deleted pods are removed from the API.
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

// standIn replaces the kubelet of a node.
type standIn struct {
	cluster *Cluster
	node    string
}

// run renews the lease and removes deleted pods, as a kubelet must.
func (s standIn) run(ctx context.Context, t testbed.T) {
	for {
		if err := errors.Join(s.renew(ctx), s.finish(ctx)); err != nil && ctx.Err() == nil {
			t.Logf("stand in for the kubelet of node %s: %v", s.node, err) // and retry
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

// finish removes deleted pods from the API at once, because nothing of them runs.
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
