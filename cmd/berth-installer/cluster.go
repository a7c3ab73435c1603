package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/log"
	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

// leaseName is that of the lease by which nodes take turns.
const leaseName = "berth-installer"

const (
	// leaseTime is after how long nobody believes in a holder that does not renew.
	leaseTime  = time.Minute
	renewEvery = 10 * time.Second
	askEvery   = 3 * time.Second
)

// cluster asks the API server, with the rights of the pod.
type cluster struct {
	alone
	node   string
	leases coordinationclient.LeaseInterface
	nodes  coreclient.NodeInterface
	stop   context.CancelFunc
	life   context.Context
	// pause is between two looks at a lease that another node has.
	pause time.Duration

	renewing sync.WaitGroup
	end      context.CancelFunc
}

func newCluster(kubeconfig, root, node, namespace string) (*cluster, error) {
	// Without a file this is the pod's service account.
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w; without a cluster use \"berth-installer install\"", err)
	}
	config.UserAgent = "berth-installer/" + version
	return clusterOf(config, root, node, namespace)
}

func clusterOf(config *rest.Config, root, node, namespace string) (*cluster, error) {
	leases, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	nodes, err := coreclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.Background())
	return &cluster{alone: alone{root}, node: node, leases: leases.Leases(namespace), nodes: nodes.Nodes(), life: life, stop: stop, pause: askEvery}, nil
}

// seen is a holder of the lease and when this process first saw it so: clocks of nodes differ.
type seen struct {
	holder, renewed string
	since           time.Time
}

// free says whether the lease may be taken, by what was seen of it before.
func (s *seen) free(l *coordination.Lease, node string, now time.Time) bool {
	holder, renewed := "", ""
	if l.Spec.HolderIdentity != nil {
		holder = *l.Spec.HolderIdentity
	}
	if l.Spec.RenewTime != nil {
		renewed = l.Spec.RenewTime.String()
	}
	if holder == "" || holder == node {
		return true
	}
	if s.holder != holder || s.renewed != renewed {
		*s = seen{holder, renewed, now}
	}
	return now.Sub(s.since) > leaseTime
}

// Turn implements installer.Cluster.
func (c *cluster) Turn(ctx context.Context) error {
	if c.end != nil {
		return nil
	}
	var s seen
	told := ""
	for {
		taken, err := c.take(ctx, &s)
		if err != nil {
			return fmt.Errorf("take the turn of this node: %w", err)
		}
		if taken {
			break
		}
		if told != s.holder {
			log.G(ctx).WithField("holder", s.holder).Info("Waiting for another node")
			told = s.holder
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(c.pause):
		}
	}
	var life context.Context
	life, c.end = context.WithCancel(c.life)
	c.renewing.Go(func() { c.renew(life) })
	return nil
}

// take takes the lease if it is free. Who was faster has it.
func (c *cluster) take(ctx context.Context, s *seen) (bool, error) {
	l, err := c.leases.Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		l = &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName}}
		c.hold(l)
		_, err = c.leases.Create(ctx, l, metav1.CreateOptions{})
		return outcome(err)
	}
	if err != nil {
		return outcome(err)
	}
	if !s.free(l, c.node, time.Now()) {
		return false, nil
	}
	c.hold(l)
	_, err = c.leases.Update(ctx, l, metav1.UpdateOptions{})
	return outcome(err)
}

// outcome tells mistakes from what passes: the server is asked again after those.
func outcome(err error) (bool, error) {
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err), apierrors.IsInvalid(err), errors.Is(err, context.Canceled):
		return false, err // names verb and resource
	}
	return false, nil
}

func (c *cluster) hold(l *coordination.Lease) {
	now, seconds := metav1.NowMicro(), int32(leaseTime/time.Second)
	l.Spec.HolderIdentity, l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &c.node, &now, &seconds
}

// renew holds the lease until the turn is over.
func (c *cluster) renew(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewEvery):
		}
		l, err := c.leases.Get(ctx, leaseName, metav1.GetOptions{})
		if err == nil {
			c.hold(l)
			_, err = c.leases.Update(ctx, l, metav1.UpdateOptions{})
		}
		if err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).Warn("Failed to renew the lease; will retry")
		}
	}
}

// Done implements installer.Cluster.
func (c *cluster) Done() {
	if c.end == nil {
		return
	}
	c.end()
	c.renewing.Wait()
	c.end = nil
	ctx, cancel := context.WithTimeout(c.life, renewEvery)
	defer cancel()
	l, err := c.leases.Get(ctx, leaseName, metav1.GetOptions{})
	if err == nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity == c.node {
		l.Spec.HolderIdentity = nil
		_, err = c.leases.Update(ctx, l, metav1.UpdateOptions{})
	}
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to give up the lease; it expires")
	}
}

// Serves implements installer.Cluster.
func (c *cluster) Serves(ctx context.Context, berth bool) error {
	if err := c.alone.Serves(ctx, berth); err != nil {
		return err
	}
	n, err := c.nodes.Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	return serving(n, berth)
}

// serving says whether a node is Ready by a kubelet that uses berth, or another runtime.
func serving(n *core.Node, berth bool) error {
	now := n.Status.NodeInfo.ContainerRuntimeVersion
	if uses := strings.HasPrefix(now, "berth://"); uses != berth {
		return fmt.Errorf("the node's runtime is %s", now)
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == core.NodeReady && condition.Status != core.ConditionTrue {
			return fmt.Errorf("the node is not Ready: %s", condition.Message)
		}
	}
	return nil
}

// alone is a node whose cluster is not asked: by hand there is one node at a time.
type alone struct{ root string }

// Turn implements installer.Cluster.
func (alone) Turn(context.Context) error { return nil }

// Done implements installer.Cluster.
func (alone) Done() {}

// Serves implements installer.Cluster: it asks the kubelet for its health.
func (a alone) Serves(ctx context.Context, _ bool) error {
	address := healthAddress(a.root)
	if address == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/healthz", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("ask the kubelet for its health: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the kubelet is not healthy: %s", resp.Status)
	}
	return nil
}

// healthAddress is where the kubelet of a node tells its health; empty if nowhere.
func healthAddress(root string) string {
	var k struct {
		Address *string `json:"healthzBindAddress"`
		Port    *int32  `json:"healthzPort"`
	}
	text, err := os.ReadFile(filepath.Join(root, "/var/lib/kubelet/config.yaml"))
	if err != nil || yaml.Unmarshal(text, &k) != nil {
		return "127.0.0.1:10248"
	}
	address, port := "127.0.0.1", int32(10248)
	if k.Address != nil && *k.Address != "0.0.0.0" && *k.Address != "" {
		address = *k.Address
	}
	if k.Port != nil {
		port = *k.Port
	}
	if port == 0 {
		return ""
	}
	return fmt.Sprintf("%s:%d", address, port)
}
