package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	nodev1client "k8s.io/client-go/kubernetes/typed/node/v1"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // authentication plugins that a kubeconfig may name
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"

	"github.com/berth-cri/berth/contrib/cluster/pkg/cluster"
	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/commandline"
)

func list[T any, L runtime.Object](ctx context.Context, s *server, resource string, read func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions) ([]T, error) {
	page := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return read(ctx, o) }
	from, _, err := pager.New(page).List(ctx, options)
	if err != nil {
		return nil, s.explain("list", resource, err)
	}
	var all []T
	err = meta.EachListItem(from, func(o runtime.Object) error {
		if one, ok := any(o).(*T); ok {
			all = append(all, *one)
		}
		return nil
	})
	return all, err
}

func (s *server) nodes(ctx context.Context) ([]corev1.Node, error) {
	return list[corev1.Node](ctx, s, "nodes", s.core.Nodes().List, metav1.ListOptions{})
}

func (s *server) runtimeClasses(ctx context.Context) ([]nodev1.RuntimeClass, error) {
	return list[nodev1.RuntimeClass](ctx, s, "runtimeclasses", s.classes.List, metav1.ListOptions{})
}

func (s *server) state(ctx context.Context) (state *cluster.State, err error) {
	state = &cluster.State{}
	if state.Nodes, err = s.nodes(ctx); err == nil {
		state.Classes, err = s.runtimeClasses(ctx)
	}
	return state, err
}

// stateWithPods also reads the unfinished pods of a namespace, or of all namespaces if it is empty,
// and the events about their sandboxes.
func (s *server) stateWithPods(ctx context.Context, namespace string) (*cluster.State, error) {
	state, err := s.state(ctx)
	if err != nil {
		return nil, err
	}
	alive := fields.AndSelectors(fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)), fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))
	if state.Pods, err = list[corev1.Pod](ctx, s, "pods", s.core.Pods(namespace).List, metav1.ListOptions{FieldSelector: alive.String()}); err != nil {
		return nil, err
	}
	failed := fields.OneTermEqualSelector("reason", cluster.SandboxFailed)
	state.Events, err = list[corev1.Event](ctx, s, "events", s.core.Events(namespace).List, metav1.ListOptions{FieldSelector: failed.String()})
	return state, err
}

func completes(c *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := c.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic("kubectl-berth: " + err.Error()) // the flag exists and has no completion yet
	}
}

// completeNames completes names from the server. A failure yields no names, because a completion
// cannot report errors.
func (p *program) completeNames(of func(context.Context, *server) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		s, err := p.connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return of(c.Context(), s), cobra.ShellCompDirectiveNoFileComp
	}
}

func namespaceNames(ctx context.Context, s *server) []string {
	namespaces, _ := list[corev1.Namespace](ctx, s, "namespaces", s.core.Namespaces().List, metav1.ListOptions{})
	var all []string
	for i := range namespaces {
		all = append(all, namespaces[i].Name)
	}
	return all
}

func handlerNames(ctx context.Context, s *server) []string {
	nodes, _ := s.nodes(ctx)
	return runtimeclass.Names(cluster.Handlers(&cluster.State{Nodes: nodes}))
}

// Discovery reads every API group at once; these are kubectl's own limits.
const (
	discoveryQPS   = 50
	discoveryBurst = 300
	// pageSize is kubectl's page size for lists.
	pageSize = 500
)

// server is the API server with the rights of the kubeconfig's user.
type server struct {
	// host is its URL, for messages.
	host    string
	core    corev1client.CoreV1Interface
	classes nodev1client.RuntimeClassInterface
}

// connect creates the clients without a request. Errors mean wrong input.
func (p *program) connect() (*server, error) {
	config, err := p.config.ToRESTConfig()
	if err != nil {
		var file *fs.PathError
		switch {
		case clientcmd.IsEmptyConfig(err):
			err = errors.New("no kubeconfig found: use --kubeconfig or --server, or set KUBECONFIG")
		case errors.As(err, &file) && file.Path == *p.config.KubeConfig:
			err = fmt.Errorf("--kubeconfig %s: %w", file.Path, file.Err)
		}
		return nil, commandline.Wrong(err)
	}
	config.UserAgent = "kubectl-berth/" + version
	// No limit: the server limits its clients.
	config.QPS = -1
	config.WarningHandler = rest.NewWarningWriter(p.ErrOut, rest.WarningWriterOptions{Deduplicate: true})
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return nil, commandline.Wrong(err)
	}
	node, err := nodev1client.NewForConfig(config)
	if err != nil {
		return nil, commandline.Wrong(err)
	}
	return &server{config.Host, core, node.RuntimeClasses()}, nil
}

// explain adds the request, or a remedy, to the error of a request.
func (s *server) explain(verb, resource string, err error) error {
	var unreachable *url.Error
	var network net.Error
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s %s: interrupted", verb, resource)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server %s rejected your credentials: %w; check the user of the kubeconfig's context", s.host, err)
	case errors.As(err, &unreachable), errors.As(err, &network):
		return fmt.Errorf("cannot reach the API server %s: %w; check --server, --context and --kubeconfig", s.host, err)
	}
	return fmt.Errorf("%s %s: %w", verb, resource, err)
}
