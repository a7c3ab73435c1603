package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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

	"github.com/berth-cri/berth/pkg/installer"
	"github.com/berth-cri/berth/pkg/installer/kubelet"
	"github.com/berth-cri/berth/pkg/installer/nodefs"
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
	// pause is between two looks at a lease that another node has, every between two renewals.
	pause, every time.Duration

	renewing sync.WaitGroup
	// turn is as long as the lease is this node's, and end ends it.
	turn context.Context
	end  context.CancelFunc
	mu   sync.Mutex
	// lose ends the run that relies on the turn.
	lose context.CancelCauseFunc
}

// errLost is the reason if another node has taken the turn.
var errLost = errors.New("another node has taken the turn, because this one did not renew its lease in time")

// follow returns a context that ends when another node takes the turn.
func (c *cluster) follow(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lose = cancel
	return ctx, cancel
}

// lost ends the turn, and the run.
func (c *cluster) lost(end context.CancelFunc) {
	end()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lose != nil {
		c.lose(errLost)
	}
}

func newCluster(kubeconfig, root, node, namespace string) (*cluster, error) {
	var config *rest.Config
	var err error
	if kubeconfig != "" {
		if config, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
			return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
		}
	} else if config, err = rest.InClusterConfig(); err != nil { // the pod's service account
		return nil, fmt.Errorf("find the API server: %w; use --kubeconfig, or without a cluster \"berth-installer install\"", err)
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
	return &cluster{alone: alone{root}, node: node, leases: leases.Leases(namespace), nodes: nodes.Nodes(), life: life, stop: stop, pause: askEvery, every: renewEvery}, nil
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
	if c.end != nil && c.turn.Err() == nil {
		return nil
	}
	c.Done()
	var s seen
	told, failed := "", false
	for {
		taken, err := c.take(ctx, &s)
		if err != nil && !passes(ctx, err) {
			return fmt.Errorf("take the turn of this node: %w", err)
		}
		if taken {
			break
		}
		switch {
		case err != nil && !failed:
			log.G(ctx).WithError(err).Warn("Failed to take the turn of this node; will retry")
			failed = true
		case err == nil:
			failed = false
		}
		if err == nil && told != s.holder {
			log.G(ctx).WithField("holder", s.holder).Info("Waiting for another node")
			told = s.holder
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(c.pause):
		}
	}
	turn, end := context.WithCancel(c.life)
	c.turn, c.end = turn, end
	c.renewing.Go(func() { c.renew(turn, end) })
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
	if _, err = c.leases.Update(ctx, l, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
		return false, nil // somebody has deleted it meanwhile
	}
	return outcome(err)
}

// outcome is that of a write of the lease: that somebody was faster is no failure.
func outcome(err error) (bool, error) {
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	return err == nil, err
}

// passes tells mistakes from what passes: the server is asked again after that. An error of
// the API server's names verb and resource, and a namespace that does not exist.
func passes(ctx context.Context, err error) bool {
	return ctx.Err() == nil && !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err)
}

func (c *cluster) hold(l *coordination.Lease) {
	now, seconds := metav1.NowMicro(), int32(leaseTime/time.Second)
	l.Spec.HolderIdentity, l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &c.node, &now, &seconds
}

// renew holds the lease until the turn is over, or another node has it.
func (c *cluster) renew(ctx context.Context, end context.CancelFunc) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.every):
		}
		l, err := c.leases.Get(ctx, leaseName, metav1.GetOptions{})
		if err == nil && l.Spec.HolderIdentity != nil && *l.Spec.HolderIdentity != c.node {
			log.G(ctx).WithField("holder", *l.Spec.HolderIdentity).Warn("Another node has taken the turn; stopping")
			c.lost(end)
			return
		}
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
	n, err := c.get(ctx)
	if err != nil {
		return err
	}
	return serving(n, berth)
}

// MayAsk implements installer.Cluster.
func (c *cluster) MayAsk(ctx context.Context) error {
	_, err := c.get(ctx)
	return err
}

// get gets the node. What the pod may not do now, it may not do in a moment either.
func (c *cluster) get(ctx context.Context) (*core.Node, error) {
	n, err := c.nodes.Get(ctx, c.node, metav1.GetOptions{})
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) {
		err = finalError{err} // names verb and resource
	}
	return n, err
}

// finalError is one that asking again does not change.
type finalError struct{ error }

func (finalError) Is(target error) bool { return target == installer.ErrFinal }
func (e finalError) Unwrap() error      { return e.error }

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

// MayAsk implements installer.Cluster.
func (alone) MayAsk(context.Context) error { return nil }

// Serves implements installer.Cluster: it asks the kubelet for its health. Which runtime it uses
// is in its files and on its command line, where the installer itself looks.
func (a alone) Serves(ctx context.Context, _ bool) error {
	k, err := kubelet.Find(nodefs.Root(a.root))
	if err != nil {
		return err
	}
	address := k.HealthAddress()
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
