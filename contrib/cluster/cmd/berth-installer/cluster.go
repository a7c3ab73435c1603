package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-cri/berth/contrib/cluster/pkg/installer"
	"github.com/berth-cri/berth/pkg/kubeletconf"
	"github.com/berth-cri/berth/pkg/nodefs"
)

// cluster is a node with access to the API server of its cluster.
type cluster struct {
	alone
	node  string
	nodes coreclient.NodeInterface
}

func newCluster(kubeconfig, root, node string) (*cluster, error) {
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
	return clusterOf(config, root, node)
}

func clusterOf(config *rest.Config, root, node string) (*cluster, error) {
	nodes, err := coreclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &cluster{alone: alone{root}, node: node, nodes: nodes.Nodes()}, nil
}

// Serves implements installer.Cluster. A missing right or node is final: a retry does not help.
func (c *cluster) Serves(ctx context.Context, berth bool) error {
	n, err := c.nodes.Get(ctx, c.node, metav1.GetOptions{})
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) {
		return finalError{err} // the error names verb and resource
	}
	if err != nil {
		return err
	}
	if err := serving(n, berth); err != nil {
		return err
	}
	return c.alone.Serves(ctx, berth)
}

// finalError is an error that a retry does not change.
type finalError struct{ error }

func (finalError) Is(target error) bool { return target == installer.ErrFinal }
func (e finalError) Unwrap() error      { return e.error }

// serving returns nil if the node is Ready and its runtime is berth. If berth is false, the runtime
// must be another one.
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

// alone is a node without access to its cluster.
type alone struct{ root string }

// Serves implements installer.Cluster by the kubelet's health endpoint. The installer itself reads
// the kubelet's runtime from its files and command line.
func (a alone) Serves(ctx context.Context, _ bool) error {
	k, err := kubeletconf.Find(nodefs.Root(a.root))
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
